// How a program of JavaScript takes the steps of the table, whatever client it has.
"use strict";

const { readFileSync } = require("node:fs");

const WORKERS = 24;

// A step for which a client has no call.
class Impossible extends Error {}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const bodyOf = (form) => (form.repeat ? form.repeat.repeat(form.times) : form.body || "");

// Of maps and messages only what the table names is compared.
function holds(expected, seen) {
  if (Array.isArray(expected))
    return Array.isArray(seen) && seen.length === expected.length && expected.every((one, n) => holds(one, seen[n]));
  if (expected !== null && typeof expected === "object")
    return seen !== null && typeof seen === "object" && Object.keys(expected).every((name) => holds(expected[name], seen[name]));
  return expected === seen;
}

// A step with the addresses of queues that the server has made.
const resolved = (step, addresses = {}) =>
  JSON.parse(JSON.stringify(step).replace(/"@(\w+)"/g, (all, name) => JSON.stringify(addresses[name])));

async function take(under, step, verbs, nameOf) {
  if (!verbs[step.do]) throw new Impossible(step.do);
  let seen;
  try {
    seen = await verbs[step.do](under, step);
  } catch (error) {
    if (error instanceof Impossible || !step.fails) throw error;
    const name = nameOf(error);
    if (name !== step.fails) throw new Error(`expected ${step.fails}, got ${name}: ${error}`);
    return;
  }
  if (step.fails) throw new Error(`expected ${step.fails} of ${step.do}, got ${JSON.stringify(seen)}`);
  if ("see" in step && !holds(step.see, seen))
    throw new Error(`${step.do}: expected ${JSON.stringify(step.see)}, got ${JSON.stringify(seen).slice(0, 500)}`);
}

// Takes the steps of a fact; returns what is printed of it.
async function ask(fact, open, verbs, nameOf) {
  let under;
  try {
    under = await open();
    for (const step of fact.steps) await take(under, resolved(step, under.addresses), verbs, nameOf);
    return { title: fact.title, ok: true };
  } catch (error) {
    if (error instanceof Impossible) return { title: fact.title, impossible: error.message };
    return { title: fact.title, ok: false, why: String(error).slice(0, 2000) };
  } finally {
    if (under) await under.end().catch(() => {});
  }
}

// Asks all facts whose title has a part, several at a time.
async function main(asked) {
  const [facts, , part = ""] = process.argv.slice(2);
  const table = JSON.parse(readFileSync(facts, "utf8")).filter((fact) => fact.title.includes(part));
  const work = async () => {
    for (let fact; (fact = table.shift()); ) console.log(JSON.stringify(await asked(fact)));
  };
  await Promise.all(Array.from({ length: WORKERS }, work));
  process.exit(0);
}

module.exports = { ask, bodyOf, holds, Impossible, main, sleep };
