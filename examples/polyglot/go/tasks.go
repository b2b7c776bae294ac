package main

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Task returns what becomes the answer, or an error, which becomes a 502. It ends when ctx does.
type Task func(ctx context.Context, call *Call) (any, error)

// TaskFailure is the error of the task `fail`.
type TaskFailure struct{ error }

// The app server's tasks of the same names; put your own here.
var tasks = map[string]Task{
	"api.core.main":         webhook(echo),
	"appserver.tasks.fail":  webhook(fail),
	"appserver.tasks.large": webhook(large),
	"appserver.tasks.sleep": webhook(sleep),
	"tests.returned":        webhook(returned),
}

// webhook reads the arguments of a task that is called as task(query, headers, body).
//
// A body in UTF-8 is a JSON string, any other {"__type__": "base64", "__value__": "..."}.
func webhook(task func(ctx context.Context, query map[string]string, body json.RawMessage) (any, error)) Task {
	return func(ctx context.Context, call *Call) (any, error) {
		query := map[string]string{}
		if len(call.Args) != 3 {
			return nil, errors.New("the task has three arguments")
		}
		if err := json.Unmarshal(call.Args[0], &query); err != nil {
			return nil, err
		}
		return task(ctx, query, call.Args[2])
	}
}

func echo(_ context.Context, _ map[string]string, body json.RawMessage) (any, error) {
	return body, nil
}

func fail(context.Context, map[string]string, json.RawMessage) (any, error) {
	return nil, TaskFailure{errors.New("as asked")}
}

func large(_ context.Context, query map[string]string, _ json.RawMessage) (any, error) {
	bytes, err := strconv.Atoi(query["bytes"])
	if err != nil || bytes < 0 {
		return nil, errors.New("the query's bytes have to be a number")
	}
	return strings.Repeat("x", bytes), nil
}

func sleep(ctx context.Context, query map[string]string, body json.RawMessage) (any, error) {
	seconds, err := strconv.ParseFloat(query["seconds"], 64)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(time.Duration(seconds * float64(time.Second))):
		return body, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// returned gives the JSON in the body, for example {"status": 201, "body": "created"}.
func returned(_ context.Context, _ map[string]string, body json.RawMessage) (any, error) {
	var text string
	if err := json.Unmarshal(body, &text); err != nil {
		return nil, err
	}
	return json.RawMessage(text), nil
}
