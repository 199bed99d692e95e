// The live figures of the host and of every sandbox: one stream for the whole page, and the last minutes of it.

import { follow } from "./api.js";

const MOST_SAMPLES = 150;

class LiveStats {
  #readers = new Set();
  #states = new Set();
  #host = [];
  #sandboxes = new Map();
  latest = null;

  constructor() {
    follow("/__inspector/api/stats", ["stats"], (sample) => this.#add(sample), new AbortController().signal, {
      onState: (isOpen) => {
        for (const tell of this.#states) tell(isOpen);
      },
    });
  }

  onState(tell) {
    this.#states.add(tell);
  }

  read(reader, signal) {
    this.#readers.add(reader);
    signal.addEventListener("abort", () => this.#readers.delete(reader));
    if (this.latest) reader(this);
  }

  host(field) {
    return this.#host.map((sample) => ({ at: sample.at, value: sample[field] }));
  }

  sandbox(tenant, session, field) {
    const samples = this.#sandboxes.get(`${tenant}:${session}`) ?? [];
    return samples.map((sample) => ({ at: sample.at, value: sample[field] }));
  }

  latestOf(tenant, session) {
    return this.latest?.sandboxes.find((each) => each.tenant === tenant && each.session === session);
  }

  #add(sample) {
    const at = Date.parse(sample.at);
    this.latest = sample;
    keep(this.#host, { at, ...sample.host });
    const alive = new Set();
    for (const sandbox of sample.sandboxes) {
      const name = `${sandbox.tenant}:${sandbox.session}`;
      alive.add(name);
      if (!this.#sandboxes.has(name)) this.#sandboxes.set(name, []);
      keep(this.#sandboxes.get(name), { at, ...sandbox });
    }
    for (const name of this.#sandboxes.keys()) if (!alive.has(name)) this.#sandboxes.delete(name);
    for (const reader of this.#readers) reader(this);
  }
}

function keep(samples, sample) {
  samples.push(sample);
  if (samples.length > MOST_SAMPLES) samples.shift();
}

export const liveStats = new LiveStats();
