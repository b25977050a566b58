// rhea sends values of every type of AMQP, or receives them: see interop.py for how values are told.
"use strict";

const fs = require("fs");
const rhea = require("rhea");

const { types } = rhea;
const [port, what, address, file] = process.argv.slice(2);
const given = JSON.parse(fs.readFileSync(file, "utf8"));

const hex = (text) => Buffer.from(text, "hex");
const ELEMENTS = { ubyte: 0x50, int: 0x71, long: 0x81, double: 0x82, string: 0xb1, symbol: 0xb3, uuid: 0x98 };

function eight(text) {
  const bytes = Buffer.alloc(8);
  const number = BigInt(text);
  if (number < 0n) bytes.writeBigInt64BE(number);
  else bytes.writeBigUInt64BE(number);
  return bytes;
}

const WIDE = new Set(["long", "ulong", "timestamp"]);
// What rhea takes for a value.
function plain(type, value) {
  if (WIDE.has(type)) {
    const number = Number(value);
    return Number.isSafeInteger(number) ? number : eight(value);
  }
  switch (type) {
    case "ubyte": case "ushort": case "uint": case "byte": case "short": case "int": return Number(value);
    case "float": return hex(value).readFloatBE(0);
    case "double": return hex(value).readDoubleBE(0);
    case "char": return value.codePointAt(0);
    case "binary": case "uuid": case "decimal32": case "decimal64": case "decimal128": return hex(value);
    default: return value;
  }
}

function wrapped([type, value]) {
  switch (type) {
    case "null": return types.wrap(null);
    case "list": return value.length ? types.List32(value.map(wrapped)) : types.List0();
    case "map": return types.Map32(value.flat().map(wrapped));
    case "array": return types.wrap_array(value[1].map((one) => plain(value[0], one)), ELEMENTS[value[0]]);
    case "decimal32": return types.Decimal32(plain(type, value));
    case "decimal64": return types.Decimal64(plain(type, value));
    case "decimal128": return types.Decimal128(plain(type, value));
    default: return types[`wrap_${type}`](plain(type, value));
  }
}

const same = (one, other) =>
  Buffer.isBuffer(one) ? Buffer.isBuffer(other) && one.equals(other) : Object.is(one, other);

function number(value) {
  if (Buffer.isBuffer(value)) return value;
  return value instanceof Date ? value.getTime() : value;
}

// Whether a value that rhea has read is one that is told. Its maps have text for keys.
function is([type, value], found) {
  switch (type) {
    case "null": return found === null || found === undefined;
    case "list": return value.length === found.length && value.every((one, n) => is(one, found[n]));
    case "map":
      return value.length === Object.keys(found).length && value.every(([key, one]) => is(one, found[key[1]]));
    case "array": return value[1].length === found.length && value[1].every((one, n) => is([value[0], one], found[n]));
    case "char": return found === plain(type, value) || found === value;
    default: return same(plain(type, value), number(found));
  }
}

function fail(why) {
  console.error(why);
  process.exit(1);
}

const container = rhea.create_container();
container.on("disconnected", ({ error }) => fail(error && error.message));
container.on("rejected", ({ delivery }) => fail(JSON.stringify(delivery.remote_state)));
container.on("receiver_error", ({ receiver }) => fail(receiver.error));
const connection = container.connect({ host: "127.0.0.1", port: Number(port), reconnect: false });

function end(told) {
  container.removeAllListeners("disconnected");
  connection.once("connection_close", () => {
    console.log(JSON.stringify(told));
    process.exit(0);
  });
  connection.close();
}

if (what === "send") {
  let next = 0;
  let accepted = 0;
  container.on("sendable", ({ sender }) => {
    while (sender.sendable() && next < given.length) {
      const subject = JSON.stringify(given[next]);
      sender.send({ message_id: `rhea ${next}`, subject, body: wrapped(given[next]) });
      next += 1;
    }
  });
  container.on("accepted", () => ++accepted === given.length && end({ accepted }));
  connection.open_sender(address);
} else {
  const strange = [];
  let seen = 0;
  container.on("message", ({ message }) => {
    if (!is(JSON.parse(message.subject), message.body)) strange.push([message.message_id, message.subject, message.body]);
    seen += 1;
    if (seen === given.count) end({ seen, strange });
  });
  connection.open_receiver({ source: address, credit_window: 50 });
}
