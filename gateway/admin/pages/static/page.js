// What pages do beyond links and forms: keys, live, copy, dialogs, the zone of times. What a page
// shows is made by the gateway; nothing here makes markup of data.
"use strict";

const EVERY = 3000; // milliseconds between two looks for what has changed
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const one = (selector, root = document) => root.querySelector(selector);

function tell(text, bad = false) {
  const place = one("dialog[open] [data-told]") ?? one("[data-told]");
  place.textContent = text;
  place.classList.toggle("bad", bad);
}

// Times ---------------------------------------------------------------------------------

const FORMS = {
  clock: p => `${p.hour}:${p.minute}:${p.second}`,
  second: p => `${p.hour}:${p.minute}:${p.second}`,
  date: p => `${p.day} ${p.month} ${p.hour}:${p.minute}`,
  short: p => `${p.hour}:${p.minute}`,
  day: p => `${p.day} ${p.month} ${p.hour}:${p.minute}:${p.second}`,
  full: p => `${p.weekday} ${p.day} ${p.month} ${p.year}, ${p.hour}:${p.minute}:${p.second}`,
};

function showTimes(root = document) {
  const utc = localStorage.getItem("zone") === "UTC";
  const format = new Intl.DateTimeFormat("en-GB", {
    timeZone: utc ? "UTC" : undefined, hourCycle: "h23", weekday: "short", year: "numeric", month: "short",
    day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short"});
  for (const time of all("time[data-form]", root)) {
    const parts = format.formatToParts(new Date(time.dateTime)).map(({type, value}) => [type, value]);
    const text = FORMS[time.dataset.form](Object.fromEntries(parts));
    if (time.firstChild.data !== text) time.firstChild.data = text;
  }
  const name = format.formatToParts(new Date()).find(part => part.type === "timeZoneName").value;
  for (const place of all("[data-zone-name]", root)) place.textContent = name;
}

function changeZone() {
  localStorage.setItem("zone", localStorage.getItem("zone") === "UTC" ? "" : "UTC");
  showTimes();
}

// Live: the page is fetched again, and what has changed is changed in place. New rows wait. ------

const live = one("[data-live]");
const isLive = () => live?.getAttribute("aria-pressed") === "true";

function change(old, fresh) {
  showTimes(fresh);
  if (old.innerHTML !== fresh.innerHTML) old.innerHTML = fresh.innerHTML;
}

async function fetched() {
  const answer = await fetch(location.href, {redirect: "error", headers: {"X-Gateway-Page": "live"}});
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (!answer.ok) throw new Error(one("main .lead", fresh)?.textContent ?? `the gateway answers ${answer.status}`);
  return fresh;
}

async function refresh() {
  const fresh = await fetched();
  if (!isLive() || one("dialog[open]")) return;
  const rows = one("[data-rows=live]"), newer = one("[data-newer]");
  if (!rows && one("[data-rows=live]", fresh)) return location.reload(); // the first has come
  for (const part of all("[data-part]")) {
    const its = fresh.getElementById(part.id);
    if (its && !part.contains(document.activeElement)) change(part, its);
  }
  if (!rows) return;
  let number = 0;
  for (const row of all("[data-row]", fresh)) {
    const old = document.getElementById(row.id);
    if (old) change(old, row);
    else number += 1;
  }
  const known = new Set(all("[data-row]", rows).map(row => row.id));
  const isAll = all("[data-row]", fresh).every(row => !known.has(row.id));
  newer.hidden = number === 0;
  one("span", newer).textContent = isAll ? `${number} or more` : number;
}

async function follow() {
  if (isLive() && !document.hidden) {
    try {
      await refresh();
      if (one(".told.bad")) tell("");
    } catch (error) {
      tell(`Not live: ${error.message}`, true);
    }
  }
  setTimeout(follow, EVERY);
}

live?.addEventListener("click", () => live.setAttribute("aria-pressed", !isLive()));
one("[data-newer]")?.addEventListener("click", () => location.reload());
if (live) setTimeout(follow, EVERY);

// What takes longer than a page may is fetched when the rest is there.
const later = one("[data-later]");
if (later) fetched().then(fresh => change(later, fresh.getElementById(later.id)), error => tell(error.message, true));

// What changes something -------------------------------------------------------------------

async function post(url, headers = {}, text) {
  const answer = await fetch(url, {method: "POST", headers: {"X-Gateway-Page": "1", ...headers}, body: text});
  const body = answer.status === 204 ? {} : await answer.json();
  if (!answer.ok) throw Object.assign(new Error(body.detail), body);
  return body;
}

async function act(button) {
  button.disabled = true;
  try {
    let done, taken = 0;
    const problems = [];
    for (let url = button.dataset.post; url; url = done.more) { // some at a time
      done = await post(url, {}, document.getElementById(button.dataset.body)?.value);
      taken += done.taken ?? 0;
      problems.push(...done.problems ?? []);
      if (taken) tell(`${taken} sent again`);
    }
    if (problems.length) tell(`${taken} sent again, ${problems.length} not: ${problems[0]}`, true);
    else if (done.go) location.assign(done.go);
    else if (done.said) tell(done.said);
    else if (!taken) location.reload();
    button.disabled = !done.said;
  } catch (error) {
    tell(error.message, true);
    // The same once more, by somebody who has read why not.
    const again = one(`[data-again="${error.type}"]`, button.closest("dialog") ?? document);
    if (again) again.hidden = false;
    button.disabled = false;
  }
}

one("[data-unlock]")?.addEventListener("submit", async event => {
  event.preventDefault();
  const form = event.target;
  const token = String.fromCharCode(...new TextEncoder().encode(one("input", form).value)); // a header has bytes
  try {
    await post(form.dataset.unlock, {Authorization: `Bearer ${token}`});
    location.reload();
  } catch (error) {
    tell(error.type === "unauthorized" ? "That is not the token." : error.message, true);
  }
});

async function copy(button) {
  const text = "link" in button.dataset ? new URL(button.dataset.link, location.href).href : button.dataset.copy;
  try {
    await navigator.clipboard.writeText(text);
    tell("Copied.");
  } catch {
    tell(text);
  }
}

document.addEventListener("click", event => {
  const button = event.target.closest("button, [data-dialog]");
  if (!button) return;
  const about = button.dataset;
  if ("dialog" in about) document.getElementById(about.dialog).showModal();
  if ("post" in about) act(button);
  if ("copy" in about || "link" in about) copy(button);
  if ("zone" in about) changeZone();
});

one("[data-submit]")?.addEventListener("change", event => event.target.form.requestSubmit());

// Keys ----------------------------------------------------------------------------------

let goes = false, at = -1;

function move(step) {
  const rows = all("[data-row]");
  if (!rows.length) return;
  rows[at]?.classList.remove("cursor");
  at = Math.min(Math.max(at + step, 0), rows.length - 1);
  rows[at].classList.add("cursor");
  rows[at].scrollIntoView({block: "nearest"});
  one("a", rows[at])?.focus({preventScroll: true});
}

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (one("dialog[open]")) return;
  const {key} = event;
  if (goes) {
    goes = false;
    one(`[data-go="${CSS.escape(key)}"]`)?.click();
  } else if (key === "g") goes = true;
  else if (key === "j" || key === "k") move(key === "j" ? 1 : -1);
  else if (key === "Escape") one("[data-back]")?.click();
  else {
    const target = all("[data-key]").find(each => each.dataset.key === key && each.checkVisibility());
    if (!target) return;
    event.preventDefault();
    if (target.matches("input")) target.focus();
    else target.click();
  }
});

showTimes();
