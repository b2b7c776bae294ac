package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Call is what a message asks for.
type Call struct {
	Args     []json.RawMessage
	Kwargs   map[string]json.RawMessage
	Delivery amqp.Table // the header of that name; nil where the message is not a gateway's

	id, task     string
	eta, expires time.Time // zero: none
	limit        time.Duration
	ignoreResult bool
	store        bool // the result is asked for later, even if it was replied
}

// read gives a message's call; an error says why no worker of this kind can run it.
func read(message amqp.Delivery) (*Call, error) {
	if message.ContentType != "application/json" || message.ContentEncoding != "utf-8" {
		return nil, fmt.Errorf("content %s, %s", message.ContentType, message.ContentEncoding)
	}
	call := &Call{store: true}
	call.id, _ = message.Headers["id"].(string)
	call.task, _ = message.Headers["task"].(string)
	if call.id == "" || call.task == "" {
		return nil, errors.New("no protocol 2: the headers have no id or no task")
	}
	var embed map[string]json.RawMessage
	body := []any{&call.Args, &call.Kwargs, &embed}
	if err := json.Unmarshal(message.Body, &body); err != nil || len(body) != 3 {
		return nil, fmt.Errorf("no protocol 2: the body is not [args, kwargs, embed]: %v", err)
	}
	for name, value := range embed { // link_error, a chain: a worker that has none must not drop it
		if text := string(value); text != "null" && text != "[]" {
			return nil, fmt.Errorf("this worker has no %s", name)
		}
	}
	for name, at := range map[string]*time.Time{"eta": &call.eta, "expires": &call.expires} {
		if text, _ := message.Headers[name].(string); text != "" {
			var err error
			if *at, err = time.Parse(time.RFC3339, text); err != nil {
				return nil, err
			}
		}
	}
	if limits, _ := message.Headers["timelimit"].([]any); len(limits) == 2 { // [hard, soft]
		var seconds int64
		if _, err := fmt.Sscan(fmt.Sprint(limits[0]), &seconds); err == nil {
			call.limit = time.Duration(seconds) * time.Second
		}
	}
	call.ignoreResult, _ = message.Headers["ignore_result"].(bool)
	if call.Delivery, _ = message.Headers["delivery"].(amqp.Table); call.Delivery != nil {
		call.store, _ = call.Delivery["store"].(bool)
	}
	return call, nil
}
