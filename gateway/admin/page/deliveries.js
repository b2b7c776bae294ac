// The journal's deliveries: search, follow, open, replay. Everything that a sender has written is
// shown as text, and never as markup.
"use strict";

const MOST = 200; // rows that new deliveries may make
const AGAIN = 3000; // milliseconds until a broken stream is opened again
const [
  journal, unlock, token, filter, told, rows, older, replayAll,
  shown, shownTitle, shownTold, facts, call, replay, close, asked, question, yes,
] = [
  "journal", "unlock", "token", "filter", "told", "deliveries", "older", "replay-all",
  "shown", "shown-title", "shown-told", "facts", "call", "replay", "close", "asked", "question", "yes",
].map(id => document.getElementById(id));

let next = null, opened = null, stream = null;
let paged = false; // are there older ones than those of the first page?
let early = null; // events that come while a list is on its way
let openings = 0;

class Refused extends Error {
  constructor(problem) {
    super(problem.detail);
    Object.assign(this, problem);
  }
}

async function api(path, query = {}, options = {}) {
  const given = sessionStorage.getItem("token");
  const headers = given ? {Authorization: `Bearer ${given}`} : {};
  const answer = await fetch(`api/${path}?${new URLSearchParams(query)}`, {...options, headers});
  if (!answer.ok) throw new Refused(await answer.json());
  return answer;
}

async function ask(path, query, method = "GET") {
  return (await api(path, query, {method})).json();
}

function wanted() {
  const query = {};
  for (const field of filter.querySelectorAll("[name]")) {
    const value = field.value.trim();
    if (value) query[field.name] = value;
  }
  return query;
}

function tell(text, bad = false) {
  told.textContent = text;
  told.className = bad ? "bad" : "";
}

// An error of the API, or of the network; a missing token is asked for.
function failed(error) {
  const locked = error.status === 401;
  unlock.hidden = !locked;
  filter.hidden = locked;
  tell(locked && !sessionStorage.getItem("token") ? "" : error.message, true);
}

// The table -----------------------------------------------------------------------------

function time(text) {
  return text ? text.replace("T", " ").slice(0, 23) : "";
}

// A request to a path that no route has has only its own.
function path(delivery) {
  return delivery.route || (delivery.request ? delivery.request.path : "");
}

function stateClass(state) {
  if (["succeeded", "answered-late"].includes(state)) return "good";
  const bad = ["failed", "dead-lettered", "expired", "refused", "ignored", "late-answer-failed"];
  return bad.includes(state) ? "bad" : "";
}

function row(delivery) {
  const made = document.createElement("tr");
  made.dataset.id = delivery.id;
  const opens = document.createElement("button");
  opens.type = "button";
  opens.textContent = time(delivery.received_at);
  opens.addEventListener("click", () => open(delivery.id));
  const status = delivery.gone ? "gone" : delivery.status ?? "–";
  const cells = [opens, delivery.state, String(status), (delivery.seconds * 1000).toFixed(1),
    path(delivery), delivery.event, delivery.id];
  made.append(...cells.map(each => {
    const cell = document.createElement("td");
    cell.append(each);
    return cell;
  }));
  made.children[1].className = stateClass(delivery.state);
  return made;
}

function put(delivery, wanted) {
  const there = [...rows.children].find(each => each.dataset.id === delivery.id);
  if (there) {
    const focused = there.contains(document.activeElement);
    const changed = row(delivery);
    there.replaceWith(changed);
    if (focused) changed.querySelector("button").focus();
  } else if (wanted) {
    rows.prepend(row(delivery));
    while (!paged && rows.children.length > MOST) rows.lastElementChild.remove();
  }
}

// List what the filter takes, after the stream of changes is open, so that nothing is missed.
async function search() {
  early = [];
  await follow();
}

async function list() {
  const own = stream;
  try {
    const page = await ask("deliveries", {...wanted(), limit: 50});
    if (own !== stream) return; // another list is on its way
    paged = false;
    rows.replaceChildren(...page.deliveries.map(row));
    listed(page);
    for (const [delivery, its] of early ?? []) put(delivery, its);
  } catch (error) {
    failed(error);
  }
  early = null;
}

async function more() {
  older.disabled = true;
  try {
    const page = await ask("deliveries", {...wanted(), limit: 50, before: next});
    paged = true;
    rows.append(...page.deliveries.map(row));
    listed(page);
  } catch (error) {
    failed(error);
  }
  older.disabled = false;
}

function listed(page) {
  next = page.next;
  older.hidden = next === null;
  const none = rows.children.length ? "" : "There are no such deliveries.";
  tell(page.problems.join("; ") || none, page.problems.length > 0);
}

// What changes --------------------------------------------------------------------------

async function follow() {
  stream?.abort();
  const own = stream = new AbortController();
  // What is received from now on is new enough, and a row whose state changes is shown as it is.
  const {since, state, ...query} = wanted();
  const states = state ? state.split(",") : null;
  try {
    const answer = await api("changes", query, {signal: own.signal});
    journal.hidden = filter.hidden = false;
    unlock.hidden = true;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const {value, done} = await reader.read();
      if (done) break;
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const event of events) take(event, states);
    }
    throw new Error("the gateway has ended the stream of changes");
  } catch (error) {
    if (own.signal.aborted) return;
    if (error.type === "urn:celery-gateway:no-journal") return; // there is nothing to show
    journal.hidden = false;
    failed(error);
    if (![400, 401, 403].includes(error.status)) setTimeout(() => own === stream && search(), AGAIN);
  }
}

function take(event, states) {
  const fields = Object.fromEntries(
    event.split("\n").map(line => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]));
  if (fields.event === "ready") list();
  if (fields.event === "missed") tell(`${fields.data} more changes: search again to see them.`);
  if (fields.event !== "delivery") return;
  const delivery = JSON.parse(fields.data);
  const its = !states || states.includes(delivery.state);
  if (early) early.push([delivery, its]);
  else put(delivery, its);
  if (opened === delivery.id) open(delivery.id);
}

// One of them ---------------------------------------------------------------------------

async function open(id) {
  const own = ++openings, again = opened === id;
  try {
    const {call: its, ...delivery} = await ask(`deliveries/${encodeURIComponent(id)}`);
    if (own !== openings || (again && opened !== id)) return; // another was opened, or it was closed
    opened = id;
    shownTitle.textContent = `${path(delivery)}: ${delivery.state}`;
    shownTitle.className = stateClass(delivery.state);
    const names = Object.keys(delivery).filter(name => {
      const value = delivery[name];
      return value !== "" && value !== false && value !== null && !["{}", "[]"].includes(JSON.stringify(value));
    });
    facts.replaceChildren(...names.flatMap(name => {
      const term = document.createElement("dt"), value = document.createElement("dd");
      term.textContent = name.replaceAll("_", " ");
      const fact = delivery[name];
      value.textContent = typeof fact === "object" ? JSON.stringify(fact) : String(fact);
      return [term, value];
    }));
    call.textContent = its ? JSON.stringify(its, null, 2) : "not kept (keep_bodies)";
    replay.disabled = !delivery.replayable;
    if (!shown.open) {
      shownTold.textContent = "";
      shown.showModal();
    }
  } catch (error) {
    failed(error);
  }
}

function agreed(text) {
  if (asked.open) return false; // one question at a time
  question.textContent = text;
  asked.returnValue = "no";
  asked.showModal();
  yes.focus();
  return new Promise(done =>
    asked.addEventListener("close", () => done(asked.returnValue === "yes"), {once: true}));
}

async function replayOne() {
  const id = opened;
  const state = shownTitle.textContent.split(": ").pop();
  if (!await agreed(`The delivery is ${state}. Run its task again, as another task?`)) return;
  try {
    const path = `deliveries/${encodeURIComponent(id)}/replay`;
    let done;
    try {
      done = await ask(path, {}, "POST");
    } catch (error) {
      if (!error.type?.endsWith("may-have-run") || !await agreed(`${error.message}. Replay it all the same?`)) throw error;
      done = await ask(path, {again: true}, "POST");
    }
    shownTold.textContent = `Replayed as the task ${done.task_id}.`;
    shownTold.className = "good";
  } catch (error) {
    shownTold.textContent = error.message;
    shownTold.className = "bad";
  }
}

async function replayFound() {
  const query = wanted();
  try {
    const would = await ask("replays", {...query, dry_run: true}, "POST");
    const number = would.would_be.length + would.left;
    const others = would.left_out.length ? ` ${would.left_out.length} are left out, as another try of`
      + " the same delivery has succeeded, may run, or is replayed." : "";
    if (!number) {
      tell(`There is nothing to replay.${others}`);
      return;
    }
    if (!await agreed(`Run the tasks of ${number} deliveries again?${others}`)) return;
    let taken = 0, problems = [];
    for (let after = ""; after !== null;) {
      const some = await ask("replays", {...query, after, to: would.to}, "POST");
      for (const each of some.replayed) {
        if (each.problem) problems.push(`${each.delivery_id}: ${each.problem}`);
        else taken += 1;
      }
      after = some.next;
      tell(`${taken} of ${number} replayed`);
    }
    const last = problems.length ? `; ${problems.length} not: ${problems[0]}` : "";
    tell(`${taken} replayed${last}`, Boolean(problems.length));
  } catch (error) {
    failed(error);
  }
}

unlock.addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem("token", token.value);
  token.value = "";
  search();
});
filter.addEventListener("submit", event => {
  event.preventDefault();
  search();
});
older.addEventListener("click", more);
replay.addEventListener("click", replayOne);
replayAll.addEventListener("click", replayFound);
close.addEventListener("click", () => shown.close());
shown.addEventListener("close", () => { opened = null; });
search();
