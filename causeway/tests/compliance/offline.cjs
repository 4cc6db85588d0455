// Preloaded into the compliance tool, which fetches the specification from GitHub at each run: it gets the copy
// in this folder instead (version 1.0.0, CC0), and other HTTPS requests fail. The gateway is contacted over plain HTTP.

const { EventEmitter } = require("node:events");
const { readFileSync } = require("node:fs");
const https = require("node:https");
const { join } = require("node:path");
const { Readable } = require("node:stream");

const SPECIFICATION =
  "https://raw.githubusercontent.com/ipfs/pinning-services-api-spec/v1.0.0/ipfs-pinning-service.yaml";

https.get = (options) => {
  const url = `https://${options.hostname}${options.path}`;
  const request = new EventEmitter();
  request.setTimeout = () => request;
  process.nextTick(() => {
    if (url !== SPECIFICATION) {
      request.emit("error", new Error(`${url} must not be fetched`));
      return;
    }
    const text = readFileSync(join(__dirname, "ipfs-pinning-service-v1.0.0.yaml"));
    const response = Readable.from([text]);
    Object.assign(response, { statusCode: 200, headers: { "content-type": "text/yaml" } });
    request.emit("response", response);
  });
  return request;
};
