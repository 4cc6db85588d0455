# syntax=docker/dockerfile:1
# The gateway in an image of its own: without root, a shell, or anything else that it does not need.
#
#   make image
#   docker run --rm --read-only --cap-drop ALL -p 8080:8080 -p 4001:4001 -p 4001:4001/udp -v causeway:/data causeway
#
# Commands find the gateway in its container: docker exec NAME causeway stats
# Settings are CAUSEWAY_… variables. The admin listener stays on the container's own loopback, where
# "docker exec … causeway …" finds it. To publish it, set CAUSEWAY_ADMIN_LISTEN=0.0.0.0:8081 and either the files of
# CAUSEWAY_ADMIN_TLS_CERTIFICATE and CAUSEWAY_ADMIN_TLS_KEY or, behind a proxy with TLS, CAUSEWAY_ADMIN_PLAINTEXT=true.

FROM rust:1.95-bookworm AS build
# For the bindings to RocksDB; the C++ compiler is in the image.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libclang-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# The history is not copied: "docker build --build-arg SOURCE_COMMIT=$(git rev-parse --short=12 HEAD) …" has --version name the commit.
ARG SOURCE_COMMIT=
COPY . .
# The cache mounts only save time: what is needed afterwards is copied out of them.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --package causeway \
    && install -D --strip target/release/causeway /out/causeway \
    && install -d -m 0750 /out/data

# What the binary needs of Debian: the loader, its libraries (RocksDB is C++), and the certificates of authorities, for
# gateways and routers over HTTPS. A whole Debian would be half of the image, with a shell and a package manager.
FROM debian:bookworm-slim AS system
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libstdc++6
COPY --from=build /out/causeway /image/usr/local/bin/causeway
COPY --from=build /out/data /image/data
RUN ldd /image/usr/local/bin/causeway | grep -o '/lib[^ ]*' \
        | xargs cp --dereference --parents --target-directory=/image \
    && install -D --mode=644 /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ca-certificates.crt \
    && echo 'hosts: files dns' > /image/etc/nsswitch.conf \
    && echo 'causeway:x:10001:10001::/data:/usr/sbin/nologin' > /image/etc/passwd \
    && echo 'causeway:x:10001:' > /image/etc/group \
    && chown 10001:10001 /image/data \
    && /usr/sbin/chroot /image /usr/local/bin/causeway --version

FROM scratch
COPY --from=system /image /
USER 10001:10001
WORKDIR /data
VOLUME /data
ENV PATH=/usr/local/bin \
    CAUSEWAY_DATA_DIR=/data \
    CAUSEWAY_HTTP_LISTEN=0.0.0.0:8080
# HTTP; peers over TCP; peers over QUIC.
EXPOSE 8080 4001/tcp 4001/udp
# The gateway is found by its data folder. Orchestrators can ask /healthz and /readyz on port 8080 instead.
HEALTHCHECK --interval=30s --timeout=15s --start-period=2m CMD ["causeway", "health"]
ENTRYPOINT ["causeway"]
CMD ["serve"]
