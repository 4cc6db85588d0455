// The figures of the last hour: those that the gateway recorded, and from then on those of its events.

// An hour, with a sample every five seconds.
const SAMPLES_MAX = 720;
const EVENTS_OF_SAMPLE = 5;
// These are averages over the time of a sample; the others are those of its end.
const RATES = ["requests", "errors", "sent_bytes", "ram_hits", "disk_hits", "site_hits", "network_hits", "p2p_received_bytes", "p2p_sent_bytes"];

// An event as a sample of /api/v1/history. Events lack the quantiles of all requests.
function sampleOf({ taken_at: at, rates, http, network, process }) {
  const of = { at, peers: network.peers, in_flight: http.in_flight, waiting: http.waiting, resident_bytes: process.resident_bytes };
  // Only a gateway of a site has `site_hits`.
  for (const name of RATES) if (rates[name] !== undefined) of[name] = rates[name];
  return of;
}

const mean = (samples, name) => samples.reduce((sum, sample) => sum + (sample[name] ?? 0), 0) / samples.length;

// The samples; `all` is a list, oldest first.
export class Samples {
  all = [];
  #pending = [];

  // Takes what the gateway recorded in the place of what is there.
  replace(samples) {
    this.all = samples.slice(-SAMPLES_MAX);
    this.#pending = [];
  }

  // Adds an event; the result is true if it completed a sample.
  add(stats) {
    const latest = this.#pending.at(-1) ?? this.all.at(-1);
    if (!stats.rates || stats.taken_at <= (latest?.at ?? 0)) return false;
    this.#pending.push(sampleOf(stats));
    if (this.#pending.length < EVENTS_OF_SAMPLE) return false;
    const sample = { ...this.#pending.at(-1) };
    for (const name of RATES) if (name in sample) sample[name] = mean(this.#pending, name);
    this.#pending = [];
    this.all.push(sample);
    if (this.all.length > SAMPLES_MAX) this.all.shift();
    return true;
  }
}
