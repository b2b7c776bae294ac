"""Sources whose public keys are fetched: which URLs, which keys, and what else has to fit."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from dataclasses import replace
from hashlib import sha256
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.cli.checks.settings import sources
from gateway.config.settings import Config
from gateway.delivery import Request
from gateway.errors import KeyNotKnown
from gateway.sources import BLOCKS, find
from gateway.sources.base import KeyRequest, Source, as_list
from loadtest.examples import example
from tests.unit.sources.examples import NOW, PUBLIC_URL
from tests.unit.sources.messages import source as of_scheme
from tests.unit.sources.sending import own, unverified
from tests.unit.sources.test_jwt import PRIVATE, pem
from tests.unit.sources.test_senders import RIGHT, request

FETCHING = [name for name in BLOCKS if find(name).block.key_url]  # type: ignore[attr-defined]
#: What each has for a secret where its key is fetched, and the URL of the key of its first vector.
SECRETS = {
    "circle": ("API-KEY", "https://api.circle.com/v2/notifications/publicKey/"
               "879dc113-5ca4-4ff7-a6b7-54652083fcf8"),
    "ebay": ("id:secret", "https://api.ebay.com/commerce/notification/v1/public_key/"
             "9936261a-7d7b-4621-a0f1-96ccb428af49"),
    "google_pubsub": ("gae-gcp@appspot.gserviceaccount.com",
                      "https://www.googleapis.com/oauth2/v1/certs"),
    "paypal": ("1JE4291016473214C",
               "https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-5a29e601"),
    "sns": ("arn:aws:sns:us-west-2:123456789012:MyTopic",
            "https://sns.us-west-2.amazonaws.com/"
            "SimpleNotificationService-0123456789abcdef0123456789abcdef.pem"),
}  # fmt: skip
VECTORS = dict(reversed(RIGHT))


class Keys:
    """Has what a sender answers, and remembers what it was asked."""

    def __init__(self, answer: bytes):
        self.answer, self.asked, self.newer = answer, list[KeyRequest](), 0

    def get(self, wanted: KeyRequest, newer: bool = False) -> Any:
        self.asked.append(wanted)
        self.newer += newer
        return wanted.read(self.answer)


def answer_of(name: str, key: str, kid: str = "7d680d8c70d44e947133cbd499ebc1a61c3d5abc") -> bytes:
    form = find(name).block.key_form  # type: ignore[attr-defined]
    if form == "pem":
        return key.encode()
    if form == "kids":
        return json.dumps({"other": key, kid: key}).encode()
    answer: Any = key
    for token in reversed(form.split("/")[1:]):
        answer = {token: answer}
    return json.dumps(answer).encode()


def receiver(name: str, *secrets: str, key: str = "") -> tuple[Source, Keys]:
    public_key = key or as_list(VECTORS[name]["secret"])[0]
    source = of_scheme(name, PUBLIC_URL, secrets=list(secrets) or [SECRETS[name][0]])
    source.key_store = keys = Keys(answer_of(name, public_key))
    return source, keys


def verify(name: str, vector: Request | None = None, *secrets: str) -> list[KeyRequest]:
    source, keys = receiver(name, *secrets)
    assert source.verify(vector or request(VECTORS[name]))
    return keys.asked


def test_all_that_fetch_are_here():
    assert set(FETCHING) == set(SECRETS)


@pytest.mark.parametrize("name", FETCHING)
def test_a_vector_is_verified_with_the_key_that_is_fetched(name):
    (asked,) = verify(name)
    assert asked.url == SECRETS[name][1]


@pytest.mark.parametrize("name", FETCHING)
def test_with_the_public_key_nothing_is_fetched(name):
    source = of_scheme(name, PUBLIC_URL, secrets=VECTORS[name]["secret"])
    assert not source.fetches and not source.key_requests
    assert source.verify(request(VECTORS[name]))


@pytest.mark.parametrize("name", FETCHING)
def test_without_a_key_it_is_503_and_with_another_401(name):
    source, _ = receiver(name)
    source.key_store = None
    with pytest.raises(KeyNotKnown):
        source.verify(request(VECTORS[name]))
    other = example(name).other_secret
    if name == "circle":
        other = "".join(line for line in other.split("-----") if not line.endswith("KEY"))
    source, _ = receiver(name, key=other)
    unverified(source, request(VECTORS[name]))


@pytest.mark.parametrize("name", ["google_pubsub", "paypal", "sns"])
def test_what_is_somebody_elses_is_refused(name):
    source, _ = receiver(name, SECRETS[name][0] + "x")
    unverified(source, request(VECTORS[name]))
    assert verify(name, None, "another", SECRETS[name][0])


def test_every_region_has_its_keys():
    for region in ("us-east-1", "us-gov-west-1", "cn-north-1", "ap-southeast-12"):
        end = ".cn" if region.startswith("cn") else ""
        url = f"https://sns.{region}.amazonaws.com{end}/SimpleNotificationService-0aF.pem"
        source, keys = receiver("sns")
        good = request(VECTORS["sns"])
        body = json.dumps({**json.loads(good.body), "SigningCertURL": url}).encode()
        assert source.verify(replace(good, body=body)) and keys.asked[0].url == url


#: HOST is the sender's own, FILE as it names them.
EVIL = [
    "http://HOST/FILE", "https://HOST.evil.example/FILE", "https://evil.example/FILE",
    "https://evil.example/https://HOST/FILE", "https://evil.example#.HOST/FILE",
    "https://evil.example?.HOST/FILE", "https://evil.example\\.HOST/FILE",
    "https://sns.evil.example/.amazonaws.com/FILE", "https://HOST:8443/FILE",
    "https://HOST@evil.example/FILE", "https://user:pw@HOST/FILE", "https://HOST/../FILE",
    "https://HOST/FILE?x=1", "https://HOST/FILE#x", "https://HOST/FILE\n",
    "https://HOST/SimpleNotificationService-%2e.pem", "https://HOST/bucket/FILE",
    "https://sns.us-w\u0435st-2.amazonaws.com/FILE", "https://sns.us\uff0ewest.amazonaws.com/FILE",
    "https://sns..amazonaws.com/FILE", "https://s3.amazonaws.com/FILE",
    "https://sns.s3.amazonaws.com/FILE", "https://sns.s3-us-west-2.amazonaws.com/FILE",
    "https://sns.s3-website-us-east-1.amazonaws.com/FILE",
    "HTTPS://SNS.US-WEST-2.AMAZONAWS.COM/FILE",
    "https://HOST/SimpleNotificationService-" + "0" * 500 + ".pem", "file:///etc/passwd",
    "//HOST/FILE", "", "x",
]  # fmt: skip
HOSTS = {"sns": "sns.us-west-2.amazonaws.com", "paypal": "api.paypal.com"}


@pytest.mark.parametrize("url", EVIL)
@pytest.mark.parametrize("name", HOSTS)
def test_no_request_chooses_another_host(name, url):
    source, keys = receiver(name)
    url = url.replace("HOST", HOSTS[name]).replace("FILE", "SimpleNotificationService-0.pem")
    good = request(VECTORS[name])
    if name == "sns":
        body = json.dumps({**json.loads(good.body), "SigningCertURL": url}).encode()
        forged = replace(good, body=body)
    else:
        forged = replace(good, headers={**good.headers, "paypal-cert-url": url})
    unverified(source, forged)
    assert not keys.asked


@pytest.mark.parametrize(
    "kid", ["../x", "a/b", "a?b", "a#b", "a b", "%2e%2e", "", "a@b", "a" * 201]
)
@pytest.mark.parametrize("name", ["circle", "ebay"])
def test_no_name_of_a_key_leads_to_another_path(name, kid):
    source, keys = receiver(name)
    good = request(VECTORS[name])
    if name == "circle":
        headers = {"x-circle-key-id": kid}
    else:
        about = urlsafe_b64encode(json.dumps({"kid": kid, "signature": "AAAA"}).encode()).decode()
        headers = {"x-ebay-signature": about}
    unverified(source, replace(good, headers={**good.headers, **headers}))
    assert not keys.asked


def test_a_token_whose_key_is_not_in_the_set_has_it_fetched_again():
    source, keys = receiver("google_pubsub")
    claims = {"iss": "https://accounts.google.com"}
    for kid in ("forged", "", "__proto__"):
        keys.newer = 0
        token = jwt.encode(claims, PRIVATE["RS256"], "RS256", {"kid": kid})
        forged = request(VECTORS["google_pubsub"])
        forged = replace(forged, headers={"authorization": f"Bearer {token}"})
        unverified(source, forged)
        assert keys.newer == 1


def of_form(form: str, **more: Any) -> Source:
    block = {
        "signature": "header:authorization", "prefix": "Bearer ", "algorithm": "jwt", "key": "pem",
        "key_url": "https://keys.example/set", "key_form": form,
        "require": {"claim:/aud": "{key}"}, "secrets": "me", **more,
    }  # fmt: skip
    return own(**block)


@pytest.mark.parametrize("algorithm", sorted(PRIVATE))
def test_a_set_has_keys_of_all_kinds(algorithm):
    jwks = []
    for name, key in PRIVATE.items():
        family = jwt.algorithms.get_default_algorithms()[name]
        jwks.append({**json.loads(family.to_jwk(key.public_key())), "kid": name})
    jwks += [{"kty": "oct", "k": "AAAA", "kid": "o"}, {}, 1, {"kty": "EC", "crv": "P-256", "x": 1}]  # type: ignore[list-item]
    source = of_form("jwks")
    source.key_store = Keys(json.dumps({"keys": jwks}).encode())
    token = jwt.encode({"aud": "me", "exp": NOW}, PRIVATE[algorithm], algorithm, {"kid": algorithm})
    good = Request("POST", "/", "", {"authorization": f"Bearer {token}"}, b"", "", 0.0, NOW)
    assert source.verify(good)
    (wanted,) = source.key_requests
    assert wanted.url == "https://keys.example/set"
    another = rsa.generate_private_key(65537, 2048)
    token = jwt.encode({"aud": "me", "exp": NOW}, another, "RS256", {"kid": "RS256"})
    unverified(source, replace(good, headers={"authorization": f"Bearer {token}"}))


@pytest.mark.parametrize("form", ["jwks", "kids", "json:/key", "pem"])
@pytest.mark.parametrize(
    "answer", [b"", b"x", b"[]", b"{}", b'{"keys":1}', b'{"keys":{"a":1}}', b'{"key":1}', b"\xff",
               b'{"a":"b"}', b'{"keys":[1,null,{"kty":"RSA","n":"AQ","e":"AQ"}]}', b"[" * 9_999],
)  # fmt: skip
def test_what_is_fetched_may_be_anything(form, answer):
    more = {} if form in ("jwks", "kids") else {"key": "pem"}
    source = of_form(form, **more)
    try:
        found = source.key_requests[0].read(answer)
    except ValueError:
        return
    assert not any(found.values())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"key_url": "http://keys.example/set"}, "https://"),
        ({"key_url": "https://keys.example"}, "https://"),
        ({"key_url": "https://{header:x-host}/set"}, "https://"),
        ({"key_url": "https://a@b/set"}, "https://"),
        ({"key_url": "https://a.example:1/set"}, "https://"),
        ({"key_url": "{header:x-url}"}, "key_urls"),
        ({"key_url": "{header:x-url}", "key_urls": ["*"]}, "https://"),
        ({"key_url": "", "key_urls": ["https://a/b"]}, "key_url"),
        ({"key_url": "", "require": {"claim:/aud": "{key}"}}, "needs key_url"),
        ({"algorithm": "hmac-sha256", "key": "utf8"}, "no public key"),
        ({"algorithm": "rsa-sha256"}, "key_form"),
        ({"key_form": "der"}, "pem, jwks"),
    ],
)
def test_what_cannot_be_fetched_safely_is_refused_at_start(changes, problem):
    with pytest.raises(ValueError, match=problem):
        of_form("jwks", **{"require": {}, **changes})


def test_paypal_needs_the_id_beside_the_public_key():
    with pytest.raises(ValueError, match="not enough"):
        receiver("paypal", pem(PRIVATE["RS256"]))


def test_ebays_handshake_is_the_hash_of_challenge_token_and_address():
    # event-notification-nodejs-sdk 1.0.3, lib/validator.js: generateChallengeResponse
    source = of_scheme("ebay", PUBLIC_URL, secrets="id:secret", verify_token="t" * 32)
    asked = Request("GET", "/ebay", "challenge_code=a1b2", {}, b"", "", 0.0, NOW)
    expected = sha256(b"a1b2" + b"t" * 32 + b"https://hooks.example.com/ebay").hexdigest()
    assert json.loads(source.handshake(asked).body) == {"challengeResponse": expected}


@pytest.mark.parametrize("name", ["google_pubsub", "sns"])
def test_check_warns_of_a_key_that_is_everybodys(name):
    vector = VECTORS[name]
    for more, warned in (([], True), ([SECRETS[name][0]], False)):
        options = {"scheme": name, "secrets": [*as_list(vector["secret"]), *more]}
        routes = [{"path": "/a", "source": "a"}]
        config = Config(sources={"a": options}, routes=routes, public_url=PUBLIC_URL)
        found = [each for each in sources(config) if "all its users" in str(each)]
        assert bool(found) == warned
