// graphile-worker as the benchmark runs it, one mode a call:
//   node runner.mjs install URI
//   node runner.mjs fill URI COUNT PAYLOAD_BYTES
//   node runner.mjs drain URI CONCURRENT_JOBS LOCAL_QUEUE
// It reports what it handled as benchmarks/tally.py does: lines of JSON, one every thousand jobs.
import { makeWorkerUtils, runOnce } from "graphile-worker";

const TASK = "bench";
const CHUNK = 10_000;
const EVERY = 1000;

async function install(utils) {
  await utils.migrate();
  await utils.withPgClient((client) => client.query("create table bench_moment (at timestamptz default clock_timestamp())"));
}

async function fill(utils, count, payloadBytes) {
  const text = "x".repeat(payloadBytes - 30);
  for (let start = 0; start < count; start += CHUNK) {
    const numbers = Array.from({ length: Math.min(CHUNK, count - start) }, (_, index) => start + index);
    await utils.addJobs(numbers.map((number) => ({ identifier: TASK, payload: { number, text } })));
  }
}

// Finished jobs are deleted, so that no row says when: the first job's start and the end are noted in a table.
async function drain(utils, concurrentJobs, localQueue) {
  const noteMoment = () => utils.withPgClient((client) => client.query("insert into bench_moment default values"));
  await utils.withPgClient((client) => client.query("truncate bench_moment")); // connected before it counts
  let count = 0;
  let noted;
  const handle = async () => {
    if (count === 0) {
      tell(count);
      noted = noteMoment();
    }
    count += 1;
    if (count % EVERY === 0) tell(count);
  };
  await runOnce({ preset: preset(concurrentJobs, localQueue), taskList: { [TASK]: handle } });
  await noted;
  await noteMoment();
}

// What its performance page gives beside the highest rate.
function preset(concurrentJobs, localQueue) {
  return {
    worker: {
      connectionString: uri,
      concurrentJobs,
      maxPoolSize: concurrentJobs + 1,
      localQueue: { size: localQueue },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  };
}

function tell(count) {
  const { user, system } = process.cpuUsage();
  const at = Number(process.hrtime.bigint()) / 1e9;
  console.log(JSON.stringify({ bench: "count", count, at, cpu: (user + system) / 1e6 }));
}

const [mode, uri, ...numbers] = process.argv.slice(2);
const utils = await makeWorkerUtils({ connectionString: uri });
try {
  await { install, fill, drain }[mode](utils, ...numbers.map(Number));
} finally {
  await utils.release();
}
