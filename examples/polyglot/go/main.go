// A worker in Go that serves the gateway: Celery's message protocol 2, on RabbitMQ and Redis.
// docs/wire.md is the contract that it keeps.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
)

const (
	prefetch  = 16              // messages at once, each in a goroutine of its own
	resultTTL = 300             // seconds; the gateway's GATEWAY_RESULT_EXPIRES
	reconnect = 2 * time.Second // before the next attempt
	patience  = 5 * time.Second // for a confirm, and before a message is given back
	dead      = "gateway.dead"  // exchange and queue
)

// A success is final; the app server stores by the same script.
var store = redis.NewScript(`
if redis.call('GETRANGE', KEYS[1], 0, 19) == '{"status": "SUCCESS"' then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return redis.call('PUBLISH', KEYS[1], ARGV[1])`)

type worker struct {
	results *redis.Client
	// In an alarm the broker reads nothing from a connection that publishes, so acknowledgements
	// have another one.
	publisher *amqp.Connection
	replies   *amqp.Channel
	blocked   atomic.Bool
	running   sync.WaitGroup
}

// failure is an exception as Celery writes it in JSON.
func failure(kind, message string) any {
	return map[string]any{"exc_type": kind, "exc_message": []string{message}, "exc_module": "worker"}
}

// handle runs a message's task, gives its result, and acknowledges the message after that.
func (w *worker) handle(ctx context.Context, message amqp.Delivery) {
	defer w.running.Done()
	call, err := read(message)
	if err != nil {
		w.deadLetter(ctx, message, err)
		return
	}
	select {
	case <-time.After(time.Until(call.eta)):
	case <-ctx.Done():
		w.settle(message.Nack(false, true))
		return
	}
	state, result := "SUCCESS", any(nil)
	if task := tasks[call.task]; !call.expires.IsZero() && time.Now().After(call.expires) {
		state, result = "REVOKED", failure("TaskRevokedError", "expired")
	} else if task == nil {
		state, result = "FAILURE", failure("NotRegistered", call.task)
	} else if result, err = run(task, call); err != nil {
		kind := strings.TrimPrefix(fmt.Sprintf("%T", err), "*")
		state, result = "FAILURE", failure(kind, err.Error())
		log.Printf("task %s[%s] failed: %v", call.task, call.id, err)
	}
	if err := w.give(message, call, state, result); err != nil {
		// The task has run, so the message is not given back: it would run again.
		log.Printf("the result of %s[%s] is lost: %v", call.task, call.id, err)
	}
	w.settle(message.Ack(false))
}

// run calls a task within its time limit; a panic is its failure.
func run(task Task, call *Call) (result any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	ctx := context.Background()
	if call.limit > 0 {
		limited, cancel := context.WithTimeout(ctx, call.limit)
		defer cancel()
		ctx = limited
	}
	return task(ctx, call)
}

// give replies to a gateway that waits for it, and stores what somebody else may ask for.
func (w *worker) give(message amqp.Delivery, call *Call, state string, result any) error {
	if call.ignoreResult {
		return nil
	}
	value, err := json.Marshal(result)
	if err != nil {
		state = "FAILURE"
		value, _ = json.Marshal(failure("EncodeError", err.Error()))
	}
	id, _ := json.Marshal(call.id)
	// With the space that the script looks for.
	meta := fmt.Sprintf(`{"status": "%s", "result": %s, "traceback": null, "children": [], `+
		`"date_done": "%s", "task_id": %s}`, state, value, time.Now().UTC().Format(time.RFC3339Nano), id)
	if strings.HasPrefix(message.ReplyTo, "gateway.reply.") && !w.blocked.Load() {
		err = w.replies.PublishWithContext(context.Background(), "", message.ReplyTo, false, false,
			amqp.Publishing{ContentType: "application/json", ContentEncoding: "utf-8",
				CorrelationId: call.id, Body: []byte(meta)})
		if err == nil && !call.store {
			return nil
		}
	}
	key := os.Getenv("GATEWAY_RESULT_KEY_PREFIX") + "celery-task-meta-" + call.id
	return store.Run(context.Background(), w.results, []string{key}, meta, resultTTL).Err()
}

// deadLetter moves a message that cannot be read to the dead letters, or gives it back.
func (w *worker) deadLetter(ctx context.Context, message amqp.Delivery, reason error) {
	log.Printf("a message that cannot be read goes to %s: %v", dead, reason)
	if err := w.publishDead(message, reason); err != nil {
		log.Printf("it cannot be published there, and goes back to its queue: %v", err)
		select { // the broker would deliver it again immediately
		case <-time.After(patience):
		case <-ctx.Done():
		}
		w.settle(message.Nack(false, true))
		return
	}
	w.settle(message.Ack(false))
}

func (w *worker) publishDead(message amqp.Delivery, reason error) error {
	if w.blocked.Load() {
		return errors.New("the broker blocks publishing connections")
	}
	channel, err := w.declareDead()
	if err != nil {
		return err
	}
	defer channel.Close()
	if err := channel.Confirm(false); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	headers := amqp.Table{}
	for name, value := range message.Headers {
		headers[name] = value
	}
	headers["dead_letter"] = amqp.Table{
		"reason": reason.Error(), "exchange": message.Exchange, "routing_key": message.RoutingKey,
		"at": time.Now().UTC().Format(time.RFC3339)}
	confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, dead, "", false, false,
		amqp.Publishing{Headers: headers, ContentType: message.ContentType,
			ContentEncoding: message.ContentEncoding, DeliveryMode: amqp.Persistent,
			Priority: message.Priority, CorrelationId: message.CorrelationId, ReplyTo: message.ReplyTo,
			MessageId: message.MessageId, Timestamp: message.Timestamp, Type: message.Type,
			AppId: message.AppId, Body: message.Body})
	if err != nil {
		return err
	}
	if confirmed, err := confirm.WaitContext(ctx); err != nil || !confirmed {
		return fmt.Errorf("not confirmed: %v", err)
	}
	return nil
}

// declareDead declares the exchange and the queue of dead letters as the app server does.
//
// It gives the channel for publishing there, which the broker closes where it refuses.
func (w *worker) declareDead() (*amqp.Channel, error) {
	channel, err := w.publisher.Channel()
	if err != nil {
		return nil, err
	}
	quorum := amqp.Table{"x-queue-type": "quorum"}
	if err = channel.ExchangeDeclare(dead, "fanout", true, false, false, false, nil); err != nil {
		return nil, err
	}
	if _, err = channel.QueueDeclare(dead, true, false, false, false, quorum); err != nil {
		return nil, err
	}
	return channel, channel.QueueBind(dead, "", dead, false, nil)
}

// settle logs that a message could not be acknowledged: the broker then delivers it again.
func (w *worker) settle(err error) {
	if err != nil {
		log.Printf("a message will be delivered again: %v", err)
	}
}

// connect opens both connections; the caller closes them, also after an error.
func (w *worker) connect(broker, queue string) (consumer *amqp.Connection, messages <-chan amqp.Delivery, err error) {
	if consumer, err = amqp.Dial(broker); err != nil {
		return
	}
	if w.publisher, err = amqp.Dial(broker); err != nil {
		return
	}
	alarms := w.publisher.NotifyBlocked(make(chan amqp.Blocking, 1))
	go func() {
		for alarm := range alarms {
			w.blocked.Store(alarm.Active)
		}
	}()
	if w.replies, err = w.publisher.Channel(); err != nil {
		return
	}
	if letters, refused := w.declareDead(); refused != nil {
		log.Printf("%s cannot be declared: %v", dead, refused)
	} else {
		letters.Close()
	}
	channel, err := consumer.Channel()
	if err != nil {
		return
	}
	if err = channel.Qos(prefetch, 0, false); err != nil {
		return
	}
	var arguments amqp.Table
	if os.Getenv("QUEUE_TYPE") == "quorum" { // as the app server declares GATEWAY_QUEUES
		arguments = amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": dead,
			"x-delivery-limit": int32(20)}
	}
	if _, err = channel.QueueDeclare(queue, true, false, false, false, arguments); err != nil {
		return
	}
	messages, err = channel.Consume(queue, "", false, false, false, false, nil)
	return
}

// consume runs tasks until the connection is lost (an error) or the worker has to stop (nil).
func consume(ctx context.Context, broker, queue string, results *redis.Client) error {
	w := &worker{results: results}
	consumer, messages, err := w.connect(broker, queue)
	defer func() {
		for _, connection := range []*amqp.Connection{consumer, w.publisher} {
			if connection != nil {
				connection.Close()
			}
		}
	}()
	if err != nil {
		return err
	}
	lost := w.publisher.NotifyClose(make(chan *amqp.Error, 1))
	log.Printf("consumes %s", queue)
	for {
		select {
		case message, open := <-messages:
			if !open {
				w.running.Wait()
				return errors.New("the connection is lost")
			}
			w.running.Add(1)
			go w.handle(ctx, message)
		case <-lost:
			w.running.Wait()
			return errors.New("the connection for replies is lost")
		case <-ctx.Done():
			// What has not begun returns to its queue when the connection closes.
			w.running.Wait()
			return nil
		}
	}
}

func main() {
	broker, queue := os.Getenv("GATEWAY_BROKER_URL"), os.Getenv("QUEUE")
	options, err := redis.ParseURL(os.Getenv("GATEWAY_RESULT_BACKEND"))
	if err != nil || broker == "" || queue == "" {
		log.Fatalf("GATEWAY_BROKER_URL, GATEWAY_RESULT_BACKEND and QUEUE have to be set: %v", err)
	}
	options.MaxRetries, options.MaxRetryBackoff = 12, time.Second
	results := redis.NewClient(options)
	ctx, restore := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-ctx.Done()
		restore() // a second signal ends the process at once
	}()
	for ctx.Err() == nil {
		if err := consume(ctx, broker, queue, results); err != nil {
			log.Printf("connects again: %v", err)
			select {
			case <-time.After(reconnect):
			case <-ctx.Done():
			}
		}
	}
	log.Print("stopped")
}
