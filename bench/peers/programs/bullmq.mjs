// BullMQ on Node: addBulk; a worker of a hundred jobs at once. The same two roles as in kit.py.
import { appendFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { SHARDQ_PEERS_URL, SHARDQ_PEERS_HOME, SHARDQ_PEERS_NOTES } = process.env;
const { Queue, Worker } = createRequire(`${SHARDQ_PEERS_HOME}/`)("bullmq");
const at = new URL(SHARDQ_PEERS_URL);
const connection = { host: at.hostname, port: Number(at.port), maxRetriesPerRequest: null };

const CHUNK = 500;
const WRITE_MS = 50;

// ms with the part after the point: Date.now() has none
const now = () => performance.timeOrigin + performance.now();

async function push() {
  const queue = new Queue("peers", { connection });
  console.log("{}");
  for await (const line of createInterface({ input: process.stdin })) {
    const { dues, seconds } = JSON.parse(line);
    let pushed = 0;
    const began = now();
    while (pushed < dues.length && now() - began < seconds * 1000) {
      const part = dues.slice(pushed, pushed + CHUNK);
      await queue.addBulk(part.map((due) => ({
        name: "handle",
        data: due.toFixed(6).padEnd(98, "x"),
        opts: { delay: Math.max(0, Math.ceil(due * 1000 - now())), removeOnComplete: true },
      })));
      pushed += part.length;
    }
    console.log(JSON.stringify({ pushed, seconds: (now() - began) / 1000 }));
  }
  process.exit();
}

function work() {
  let late = [];
  new Worker("peers", async (job) => {
    late.push(now() / 1000 - parseFloat(job.data));
  }, { connection, concurrency: 100 });
  setInterval(() => {
    if (late.length) appendFileSync(`${SHARDQ_PEERS_NOTES}/${process.pid}.late`, new Float64Array(late));
    late = [];
  }, WRITE_MS);
}

process.argv[2] === "push" ? await push() : work();
