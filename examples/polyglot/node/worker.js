// A worker in Node.js that serves the gateway, on celery-node. docs/wire.md is the contract.
//
// celery-node acknowledges a message before it runs the task, stores each result for a day, and
// replies nothing. What replaces that is below the tasks.
"use strict";

const { AsyncLocalStorage } = require("node:async_hooks");
const { createWorker } = require("celery-node");

const { GATEWAY_BROKER_URL, GATEWAY_RESULT_BACKEND, QUEUE } = process.env;
if (!GATEWAY_BROKER_URL || !GATEWAY_RESULT_BACKEND || !QUEUE) {
  console.error("GATEWAY_BROKER_URL, GATEWAY_RESULT_BACKEND and QUEUE have to be set");
  process.exit(1);
}
const PREFETCH = 16; // messages at once
const RESULT_TTL = 300; // seconds; the gateway's GATEWAY_RESULT_EXPIRES
const PATIENCE = 5000; // milliseconds before a message is given back
const DEAD = "gateway.dead"; // exchange and queue

// amqplib asks for frames of 4 KiB, which RabbitMQ refuses from 4.1 on.
const broker = `${GATEWAY_BROKER_URL}${GATEWAY_BROKER_URL.includes("?") ? "&" : "?"}frameMax=131072`;
const worker = createWorker(broker, GATEWAY_RESULT_BACKEND, QUEUE);
const current = new AsyncLocalStorage(); // {message, given}: whose task runs, and its result's end
console.info = () => {}; // celery-node would write the arguments of each task there

/** What the gateway tells a task beside its arguments; undefined where somebody else called it. */
const delivery = () => current.getStore().message.properties.headers.delivery;

// The app server's tasks of the same names; put your own here. A task is called with the args and,
// as the last one, the kwargs. A body that is not UTF-8 is {__type__: "base64", __value__: "..."}.

class TaskFailure extends Error {}

worker.register("api.core.main", (query, headers, body) => body);
worker.register("appserver.tasks.fail", () => {
  throw new TaskFailure("as asked");
});
worker.register("appserver.tasks.large", (query) => "x".repeat(Number(query.bytes)));
worker.register("appserver.tasks.sleep", async (query, headers, body) => {
  await new Promise((resolve) => setTimeout(resolve, Number(query.seconds) * 1000));
  return body;
});
worker.register("tests.returned", (query, headers, body) => JSON.parse(body));

// Results: a reply where a gateway waits for one, else Redis.

const failure = (type, message) => ({ exc_type: type, exc_message: [message], exc_module: "worker" });

async function give({ message }, id, result, status) {
  const { replyTo, headers } = message.properties;
  if (headers.ignore_result) return;
  if (result instanceof Error) result = failure(result.constructor.name, result.message);
  const value = JSON.stringify({ status, result: result ?? null, traceback: null, children: [],
    date_done: new Date().toISOString(), task_id: id });
  if (replyTo?.startsWith("gateway.reply.")) {
    const channel = await publishing;
    channel.sendToQueue(replyTo, Buffer.from(value),
      { correlationId: id, contentType: "application/json", contentEncoding: "utf-8" });
    if (delivery()?.store === false) return;
  }
  const key = `celery-task-meta-${id}`;
  await worker.backend.redis.multi().setex(key, RESULT_TTL, value).publish(key, value).exec();
}

worker.backend.storeResult = (id, result, status) => {
  const task = current.getStore();
  task.given = give(task, id, result, status); // celery-node does not wait for it
  return task.given;
};

// Messages: acknowledged when the result is given; what cannot be read becomes a dead letter.

const run = worker.createTaskHandler();
let stopping = false;
const stopped = new Promise((resolve) => {
  for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, resolve);
});
const running = new Set();

// In an alarm the broker reads nothing from a connection that publishes, so acknowledgements have
// another one.
const publisher = require("amqplib").connect(broker);
const publishing = publisher.then((connection) => connection.createConfirmChannel());

/** Return [args, kwargs, embed]; throws an Error that says why this worker cannot run it. */
function read({ content, properties: { contentType, contentEncoding, headers } }) {
  if (contentType !== "application/json" || contentEncoding !== "utf-8")
    throw new Error(`content ${contentType}, ${contentEncoding}`);
  if (!headers.id || !headers.task) throw new Error("no protocol 2: no id or no task");
  const body = JSON.parse(content.toString("utf-8"));
  if (!Array.isArray(body) || body.length !== 3 || !Array.isArray(body[0]))
    throw new Error("no protocol 2: the body is not [args, kwargs, embed]");
  const asked = Object.keys(body[2]).find((name) => body[2][name]?.length);
  if (asked) throw new Error(`this worker has no ${asked}`);
  return body;
}

async function handle(channel, message) {
  const { headers } = message.properties;
  let body;
  try {
    body = read(message);
  } catch (error) {
    await deadLetter(channel, message, error);
    return;
  }
  if (headers.eta) {
    const wait = Date.parse(headers.eta) - Date.now();
    await Promise.race([stopped, new Promise((resolve) => setTimeout(resolve, wait))]);
    if (stopping) return; // it returns to its queue when the connection closes
  }
  if (headers.expires && Date.now() > Date.parse(headers.expires)) {
    worker.backend.storeResult(headers.id, failure("TaskRevokedError", "expired"), "REVOKED");
  } else if (!(headers.task in worker.handlers)) {
    worker.backend.storeResult(headers.id, failure("NotRegistered", headers.task), "FAILURE");
  } else {
    await run({ headers, decode: () => body });
  }
  // The task has run, so the message is not given back if this fails: it would run again.
  await current.getStore().given?.catch((error) =>
    console.error(`the result of ${headers.task}[${headers.id}] is lost: ${error.message}`));
  channel.ack(message);
}

/** Declare the exchange and the queue of dead letters as the app server does; return the channel. */
async function declareDead() {
  const letters = await publishing;
  await letters.assertExchange(DEAD, "fanout", { durable: true });
  await letters.assertQueue(DEAD, { durable: true, arguments: { "x-queue-type": "quorum" } });
  await letters.bindQueue(DEAD, DEAD, "");
  return letters;
}

async function deadLetter(channel, message, error) {
  console.error(`a message that cannot be read goes to ${DEAD}: ${error.message}`);
  const { exchange, routingKey: routing_key } = message.fields;
  const dead_letter = { reason: error.message, exchange, routing_key, at: new Date().toISOString() };
  const { properties } = message;
  try {
    const letters = await declareDead();
    letters.publish(DEAD, "", message.content, { ...properties, deliveryMode: 2,
      expiration: undefined, userId: undefined,
      headers: { ...properties.headers, dead_letter } });
    await letters.waitForConfirms();
    channel.ack(message);
  } catch (refused) {
    console.error(`it cannot be published there, and returns to its queue: ${refused.message}`);
    setTimeout(() => channel.nack(message, false, true), PATIENCE);
  }
}

worker.broker.subscribe = async (queue) => {
  await declareDead();
  // A supervisor starts the process again; what was not acknowledged is delivered again.
  for (const connection of [await worker.broker.connect, await publisher])
    connection.on("close", () => stopping || process.exit(1)).on("error", console.error);
  const channel = await worker.broker.channel;
  await channel.prefetch(PREFETCH);
  await channel.consume(queue, (message) => {
    if (stopping) return; // it returns to its queue when the connection closes
    if (message === null) process.exit(1); // the queue was deleted
    const ended = current.run({ message }, () => handle(channel, message))
      .finally(() => running.delete(ended));
    running.add(ended);
  });
  console.log(`consumes ${queue}`);
};

stopped.then(async () => {
  stopping = true;
  await Promise.all(running);
  for (const connection of [publisher, worker.broker.connect]) await (await connection).close();
  process.exit(0);
});

worker.run().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
