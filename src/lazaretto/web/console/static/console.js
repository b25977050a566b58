// Keys, and pages that follow the store: the server says that something changed, the page asks for itself again.
"use strict";
(() => {
  const base = document.body.dataset.base;
  const kinds = document.body.dataset.kinds.split(" ").filter(Boolean);
  const button = document.getElementById("live");
  const $ = (what) => document.querySelector(what);
  const all = (what) => [...document.querySelectorAll(what)];
  const words = { live: "live", paused: "paused", lost: "connection lost", changed: "changed: show", off: "not live" };
  let paused = false, waiting = false, busy = false, failed = false, last = 0;

  // While the server is away, nothing can be sent, and what is typed stays.
  const rest = (away) => {
    for (const one of all("form[method=post] button")) {
      if (away && !one.disabled) { one.disabled = true; one.dataset.away = one.title; one.title = "The server does not answer. What you typed is kept."; }
      if (!away && one.dataset.away !== undefined) { one.disabled = false; one.title = one.dataset.away; delete one.dataset.away; }
    }
  };

  const say = (state) => {
    if (!button) return;
    rest(state === "lost");
    // What answers a form cannot be asked for again.
    if ($("#main").dataset.still !== undefined) state = "off";
    button.dataset.state = state;
    const as_of = state === "lost" ? `; as of ${told(fresh.toISOString(), "utc").slice(11)}` : "";
    document.getElementById("live-word").textContent = words[state] + as_of;
  };

  // When the page was right last, by the server's clock, and how far that is ahead of this one.
  let fresh = new Date($("#main").dataset.now), ahead = fresh - Date.now();
  const spans = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const age = (iso) => {
    const seconds = Math.abs(fresh - new Date(iso)) / 1000;
    const [unit, size] = spans.find(([, size]) => seconds >= size) || ["s", 1];
    return `${Math.round(seconds / size)} ${unit}`;
  };
  // What was drawn a while ago and is still right: ages go on.
  const grow_older = () => {
    fresh = new Date(Date.now() + ahead);
    for (const time of all("main time")) {
      const shown = time.dataset.way === undefined ? time.textContent : time.dataset.age;
      const text = shown.replace(/^\d+ (d|h|min|s)\b/, age(time.dateTime));
      if (time.dataset.way === undefined) time.textContent = text; else time.dataset.age = text;
    }
  };

  // Times are told as ages, or exactly: of UTC, or of this clock.
  const ways = ["", "utc", "local"];
  const two = (number) => String(number).padStart(2, "0");
  const told = (iso, way) => {
    if (way === "utc") return iso.replace("T", " ").replace(/\.\d+/, "").replace("Z", " UTC");
    const at = new Date(iso);
    return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  };
  const tell_times = () => {
    const way = localStorage.getItem("lazaretto times") || "";
    for (const time of all("main time")) {
      if (time.dataset.way === way || (!way && time.dataset.way === undefined)) continue;
      if (time.dataset.way === undefined) time.dataset.age = time.textContent;
      time.textContent = way ? told(time.dateTime, way) : time.dataset.age;
      if (way) time.dataset.way = way; else delete time.dataset.way;
    }
  };

  // What is chosen can be planned as a repair.
  const choose = () => {
    const form = $("#chosen");
    if (!form) return;
    const count = all("main tbody input[type=checkbox]:checked").length;
    form.hidden = !count;
    form.querySelector("button").textContent = `Plan a repair of the chosen ${count}`;
  };
  document.addEventListener("change", choose);

  // A letter knows its neighbours in the list that it was opened from.
  const here = location.pathname + location.search;
  const beside = () => {
    const place = $(".beside");
    if (!place) return;
    let list = [];
    try { list = JSON.parse(sessionStorage.getItem("lazaretto list") || "[]"); } catch { /* not ours */ }
    const at = list.indexOf(here);
    for (const [rel, to] of [["prev", list[at - 1]], ["next", list[at + 1]]]) {
      const link = place.querySelector(`a[rel=${rel}]`);
      if (at < 0 || !to || !to.startsWith(base + "/")) link.removeAttribute("href"); else link.href = to;
    }
    place.hidden = at < 0;
  };
  document.addEventListener("click", (event) => {
    if (!event.target.closest("main tbody a.open")) return;
    sessionStorage.setItem("lazaretto list", JSON.stringify(all("main tbody a.open").map((link) => link.getAttribute("href"))));
  });
  const dress = () => { tell_times(); choose(); beside(); };

  // Nothing moves under the pointer, or while somebody types or decides.
  const disturbs = () => {
    const at = document.activeElement;
    if (at && at.closest("main form")) return true;
    if (all("main form input:not([type=hidden], [type=checkbox]), main form textarea").some((field) => field.value !== field.defaultValue)) return true;
    return $("main tbody:hover, main form:hover, details.danger[open], details.menu[open], main tbody input:checked") !== null;
  };

  document.addEventListener("htmx:error", () => { failed = true; });
  const refresh = async (asked) => {
    if ($("#main").dataset.still !== undefined) return say("off");
    if (paused && !asked) return say("paused");
    if (!asked && disturbs()) { waiting = true; return say("changed"); }
    const since = Date.now() - last;
    if (busy || since < 1000) { if (!waiting) { waiting = true; setTimeout(() => { if (waiting) refresh(false); }, Math.max(200, 1000 - since)); } return; }
    busy = true; waiting = failed = false; last = Date.now();
    try {
      const before = $("#main").dataset.now, tag = $("#main").dataset.tag;
      const headers = tag ? { "If-None-Match": tag } : {};
      await htmx.ajax("GET", location.pathname + location.search, { target: "#main", select: "#main", swap: "outerMorph", headers });
      if (failed) throw new Error("the server did not answer");
      const now = $("#main").dataset.now;
      if (now === before) grow_older(); else { fresh = new Date(now); ahead = fresh - Date.now(); }
      dress();
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

  const places = { o: "/", f: "/failures", r: "/repairs", q: "/queues", d: "/dialogs", a: "/activity", w: "/workers" };
  const follow = (what) => { const link = $(what); if (link && link.href) location.href = link.href; };
  const keys = $("#single-keys");
  if (keys) {
    keys.checked = localStorage.getItem("lazaretto keys") !== "off";
    keys.disabled = false;
    keys.addEventListener("change", () => localStorage.setItem("lazaretto keys", keys.checked ? "on" : "off"));
  }
  let going = 0;
  const move = (by) => {
    const rows = [...document.querySelectorAll("main a.open")];
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))].focus();
  };
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest("input:not([type=checkbox]), select, textarea");
    if (event.key === "Escape" && field) return field.blur();
    if (localStorage.getItem("lazaretto keys") === "off") return;
    if (field || event.ctrlKey || event.metaKey || event.altKey) return;
    if (Date.now() < going && places[event.key]) { location.href = base + places[event.key]; return; }
    going = 0;
    switch (event.key) {
      case "g": going = Date.now() + 1500; break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "x": { const box = document.activeElement.closest("tr")?.querySelector("input[type=checkbox]"); if (box) box.click(); break; }
      case "n": follow(".beside a[rel=next], .pages a[rel=next]"); break;
      case "p": follow(".beside a[rel=prev], .pages a[rel=prev]"); break;
      case "e": follow("a[data-key=e]"); break;
      case "t": follow("a[data-key=t]"); $("button[data-key=t]")?.focus(); break;
      // What changes something is asked for: Enter does it.
      case "r": { const act = $("[data-key=r]"); if (act) { act.focus(); act.scrollIntoView({ block: "center" }); } break; }
      case "u": {
        const way = localStorage.getItem("lazaretto times") || "";
        localStorage.setItem("lazaretto times", ways[(ways.indexOf(way) + 1) % ways.length]);
        tell_times();
        break;
      }
      case "/": event.preventDefault(); $("header input[type=search]").focus(); break;
      case ".": if (button) button.click(); break;
      case "?": location.href = base + "/keys"; break;
    }
  });

  dress();

  // Where the bar of pages is wider than the screen, this one's name is in sight.
  const tabs = $("header nav"), tab = $("header nav [aria-current]");
  if (tab) tabs.scrollLeft = tab.offsetLeft - tabs.offsetLeft - 8;

  // A file is read here, and sent as a field of its form.
  for (const part of all("[data-scripted]")) part.hidden = false;
  document.addEventListener("change", async (event) => {
    const into = event.target.dataset.into && document.getElementById(event.target.dataset.into);
    const file = into && event.target.files[0];
    if (!file) return;
    event.target.setCustomValidity(file.size > 190000 ? "A file of at most 190,000 bytes: larger ones with the command." : "");
    if (!event.target.reportValidity()) return;
    let text = "";
    for (const byte of new Uint8Array(await file.arrayBuffer())) text += String.fromCharCode(byte);
    into.value = btoa(text);
    if (event.target.dataset.stays === undefined) into.form.requestSubmit();
  });

  // A form is sent once, however often its button is pressed, and only to a server that answers.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    // It comes again with the button that was pressed, once the server has answered.
    if (form.dataset.sent === "next") { form.dataset.sent = "yes"; return; }
    event.preventDefault();
    if (form.dataset.sent) return;
    form.dataset.sent = "yes";
    try {
      await fetch($("link[rel=icon]").href, { cache: "no-store" });
    } catch { delete form.dataset.sent; say("lost"); return; }
    form.dataset.sent = "next";
    form.requestSubmit(event.submitter);
  });
})();
