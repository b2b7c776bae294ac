{{- /* All of these take {root, name, role}. */ -}}

{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "gateway.metadata" -}}
name: {{ .root.Release.Name }}-{{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "gateway.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "gateway.image" -}}
{{- $image := mergeOverwrite (deepCopy .root.Values.image) (.role.image | default dict) -}}
image: {{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{- define "gateway.pod" -}}
serviceAccountName: {{ .root.Release.Name }}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
# On different machines and in different zones, as far as there are some.
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "gateway.selector" $ | nindent 8 }}
  {{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.pod }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gateway.container" -}}
{{ include "gateway.image" . }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
envFrom: [{secretRef: {name: {{ .role.existingSecret }}}}]
resources: {{- toYaml .role.resources | nindent 2 }}
{{- end }}

{{- /* What is in `env` comes last, and so takes precedence. */ -}}
{{- define "gateway.environment" -}}
{{- $env := list -}}
{{- if eq .name "gateway" -}}
{{- $env = append $env (dict "name" "GATEWAY_GRACE" "value" (toString .role.grace)) -}}
{{- $env = append $env (dict "name" "GATEWAY_HISTORY" "value" "/var/lib/gateway/history") -}}
{{- else if .role.declare -}}
{{- $env = append $env (dict "name" "GATEWAY_QUEUES" "value" (join "," .role.queues)) -}}
{{- end -}}
{{- with .root.Values.tls -}}
{{- if .existingSecret -}}
{{- $env = append $env (dict "name" "GATEWAY_TLS_CA" "value" "/etc/tls/ca.crt") -}}
{{- if .clientCertificate -}}
{{- $env = append $env (dict "name" "GATEWAY_TLS_CERT" "value" "/etc/tls/tls.crt") -}}
{{- $env = append $env (dict "name" "GATEWAY_TLS_KEY" "value" "/etc/tls/tls.key") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .root.Values.rabbitmq.enabled -}}
{{- $broker := dict "secretKeyRef" (include "gateway.broker" . | fromYaml) -}}
{{- $env = append $env (dict "name" "GATEWAY_BROKER_URL" "valueFrom" $broker) -}}
{{- end -}}
{{- with concat $env .role.env -}}
{{- toYaml . -}}
{{- end -}}
{{- end }}

{{- /* The secret that has the broker's URL. */ -}}
{{- define "gateway.broker" -}}
{{- if .root.Values.rabbitmq.enabled -}}
name: {{ .root.Release.Name }}-rabbitmq-default-user
key: connection_string
{{- else -}}
name: {{ .role.existingSecret }}
key: GATEWAY_BROKER_URL
{{- end }}
{{- end }}

{{- define "gateway.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .root.Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "gateway.volumes" -}}
- {name: tmp, emptyDir: {medium: Memory, sizeLimit: 16Mi}}
{{- with .root.Values.tls.existingSecret }}
- {name: tls, secret: {secretName: {{ . }}}}
{{- end }}
{{- end }}

{{- define "gateway.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{- include "gateway.metadata" . | nindent 2 }}
spec:
  # One at a time, however many there are: a node can always be drained.
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "gateway.selector" . | nindent 6 }}
{{- end }}

{{- define "gateway.scaled" -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {{- include "gateway.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {name: {{ .root.Release.Name }}-{{ .name }}}
  pollingInterval: 5
  minReplicaCount: {{ .role.scaling.min }}
  maxReplicaCount: {{ .role.scaling.max }}
  # While KEDA cannot ask.
  fallback: {failureThreshold: 3, replicas: {{ .role.scaling.fallback }}}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleUp: {stabilizationWindowSeconds: 0}
        # A burst that comes again finds the pods of the last one.
        scaleDown: {stabilizationWindowSeconds: 300}
{{- end }}
