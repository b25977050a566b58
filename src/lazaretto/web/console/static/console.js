// Keys, and pages that follow the store: the server says that something changed, the page asks for itself again.
"use strict";
(() => {
  const base = document.body.dataset.base;
  const kinds = document.body.dataset.kinds.split(" ").filter(Boolean);
  const button = document.getElementById("live");
  const words = { live: "live", paused: "paused", lost: "connection lost", changed: "changed: show", off: "not live" };
  let paused = false, waiting = false, busy = false, last = 0;

  const say = (state) => {
    if (!button) return;
    button.dataset.state = state;
    document.getElementById("live-word").textContent = words[state];
  };

  // Nothing moves under the pointer, or while somebody types or decides.
  const disturbs = () => {
    const at = document.activeElement;
    if (at && at.closest("main form")) return true;
    return document.querySelector("main tbody:hover, main form:hover, details.danger[open]") !== null;
  };

  const refresh = async (asked) => {
    if (paused && !asked) return say("paused");
    if (!asked && disturbs()) { waiting = true; return say("changed"); }
    const since = Date.now() - last;
    if (busy || since < 1000) { if (!waiting) { waiting = true; setTimeout(() => { if (waiting) refresh(false); }, Math.max(200, 1000 - since)); } return; }
    busy = true; waiting = false; last = Date.now();
    try {
      await htmx.ajax("GET", location.pathname + location.search, { target: "#main", select: "#main", swap: "outerMorph" });
      say(paused ? "paused" : "live");
    } catch { say("lost"); }
    busy = false;
  };

  // One stream for all pages of a browser: whoever has the lock tells the others.
  const channel = new BroadcastChannel("lazaretto " + base);
  channel.onmessage = (message) => { if (message.data === "news") refresh(false); else say(paused ? "paused" : message.data); };
  const tell = (what) => { channel.postMessage(what); channel.onmessage({ data: what }); };
  const listen = () => new Promise((ended) => {
    const stream = new EventSource(base + "/api/v1/events/stream");
    stream.onopen = () => tell("live");
    stream.onerror = () => { tell("lost"); if (stream.readyState === 2) setTimeout(ended, 5000); };
    for (const kind of kinds) stream.addEventListener(kind, () => tell("news"));
  });
  const lead = async () => { for (;;) await listen(); };
  if (button) {
    if (navigator.locks) {
      navigator.locks.request("lazaretto " + base, lead);
      say("live");
    } else lead();
    button.addEventListener("click", () => {
      if (button.dataset.state === "changed") return refresh(true);
      paused = !paused;
      say(paused ? "paused" : "live");
      if (!paused) refresh(true);
    });
    // Counts of waiting messages change without an event.
    setInterval(() => { if (!document.hidden && !paused) refresh(false); }, 10000);
  }

  const places = { o: "/", f: "/failures", r: "/repairs", q: "/queues", a: "/activity", w: "/workers" };
  let going = 0;
  const move = (by) => {
    const rows = [...document.querySelectorAll("main a.open")];
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))].focus();
  };
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest("input, select, textarea");
    if (event.key === "Escape" && field) return field.blur();
    if (field || event.ctrlKey || event.metaKey || event.altKey) return;
    if (Date.now() < going && places[event.key]) { location.href = base + places[event.key]; return; }
    going = 0;
    switch (event.key) {
      case "g": going = Date.now() + 1500; break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "/": event.preventDefault(); document.querySelector("header input[type=search]").focus(); break;
      case ".": if (button) button.click(); break;
      case "?": location.href = base + "/keys"; break;
    }
  });

  // A form is sent once, however often its button is pressed.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
  });
})();
