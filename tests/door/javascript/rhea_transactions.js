// rhea in transactions: declares them, settles messages in them, and discharges them. It has no coordinator of its own,
// so its types are told what the specification says of one. Its transfers carry no state: it cannot send in one.
"use strict";

const rhea = require("rhea");

const { types } = rhea;
const port = Number(process.argv[2]);
const container = rhea.create_container();

const composite = (name, code, ...fields) =>
  types.define_composite({ name, code, fields: fields.map(([field, type]) => ({ name: field, type })) });
const coordinator = composite("coordinator", 0x30, ["capabilities", "symbol"]);
const declare = composite("declare", 0x31, ["global_id", "*"]);
const discharge = composite("discharge", 0x32, ["txn_id", "binary"], ["fail", "boolean"]);
const transactional = composite("transactional_state", 0x34, ["txn_id", "binary"], ["outcome", "*"]);
const accepted = composite("accepted", 0x24);
const rejected = composite("rejected", 0x25, ["error", "*"]);

function fail(why) {
  console.error(why);
  process.exit(1);
}

container.on("disconnected", ({ error }) => fail(error && error.message));
container.on("connection_error", ({ connection }) => fail(connection.error));
// It says so of an outcome that it does not know: that a transaction is declared.
console.error = ((say) => (text) => String(text).startsWith("unrecognised outcome") || say(text))(console.error);

const connection = container.connect({ host: "127.0.0.1", port, reconnect: false });
const control = connection.open_sender({ name: "control", autosettle: false });
control.local.attach.target = coordinator.create({}).described();

function once(emitter, name) {
  return new Promise((resolve) => emitter.once(name, resolve));
}

async function ask(body) {
  const writer = new types.Writer();
  writer.write(body.described());
  const value = Buffer.from([0x00, 0x53, 0x77]);
  const delivery = control.send(Buffer.concat([value, writer.toBuffer()]), undefined, 0);
  for (;;) {
    const context = await once(control, "settled");
    if (context.delivery !== delivery) continue;
    delivery.update(true);
    const state = delivery.remote_state;
    if (state.descriptor === undefined) return { code: state.constructor.descriptor.numeric };
    return { code: state.descriptor.value, id: state.value[0].value };
  }
}

// Settles messages of a queue in one transaction, and ends it. Returns the outcome of the discharge.
async function settle(receiver, deliveries, states, fails) {
  const { id } = await ask(declare.create({}));
  for (const [n, delivery] of deliveries.entries()) {
    delivery.update(false, transactional.create({ txn_id: id, outcome: states[n] }).described());
    await once(receiver, "settled");
  }
  return (await ask(discharge.create({ txn_id: id, fail: fails }))).code;
}

async function main() {
  await once(control, "sendable");
  const receiver = connection.open_receiver({ source: "q", credit_window: 0, autoaccept: false, autosettle: false });
  const deliveries = await new Promise((resolve) => {
    const found = [];
    receiver.on("message", ({ delivery }) => found.push(delivery) === 3 && resolve(found));
    receiver.add_credit(3);
  });
  const accept = accepted.create({}).described();
  const reject = rejected.create({}).described();
  const [a, b, c] = deliveries;
  const told = {
    aborted: await settle(receiver, [a], [accept], true),
    committed: await settle(receiver, [b, c], [accept, reject], false),
    unknown: (await ask(discharge.create({ txn_id: Buffer.from("none"), fail: false }))).code,
  };
  container.removeAllListeners("disconnected");
  connection.once("connection_close", () => {
    console.log(JSON.stringify(told));
    process.exit(0);
  });
  connection.close();
}

main().catch(fail);
