// Kubo's command line on its own repository, without a daemon and without any network.

import { spawnSync } from "node:child_process";
import { join } from "node:path";

const OUTPUT_BYTES_MAX = 64 << 20;

export class Kubo {
  #ipfs;
  #environment;

  /** Creates a repository in `dir`, which must be empty or not exist. */
  constructor(ipfs, dir) {
    this.#ipfs = ipfs;
    this.#environment = { ...process.env, IPFS_PATH: join(dir, "repository"), IPFS_TELEMETRY: "off" };
    this.run(["init", "--profile=test"]);
  }

  /** Runs `ipfs --offline …args` and returns the bytes that it printed. */
  run(args, { input, cwd } = {}) {
    const options = { env: this.#environment, input, cwd, maxBuffer: OUTPUT_BYTES_MAX };
    const done = spawnSync(this.#ipfs, ["--offline", ...args], options);
    if (done.status !== 0) throw new Error(`ipfs ${args.join(" ")}: ${done.error ?? done.stderr}`);
    return done.stdout;
  }

  /** Runs `ipfs --offline …args` and returns its output as text. */
  text(args, options) {
    return this.run(args, options).toString("utf8").trim();
  }
}
