//! The replay of a trace over HTTP, in an open loop: requests are sent when they are due, whatever the server does.
//!
//! Goals: no coordinated omission (a stall delays the requests during it, and that shows: latency counts from the time
//! that a request was due); bounded connections, time and memory; an end by itself, however the server behaves. A due
//! request that finds all connections busy waits for one, and its latency grows meanwhile; how late requests were sent
//! is recorded, so that a slow generator is distinguished from a slow server.
//!
//! How: one task releases the requests that are due, as permits of a semaphore; a worker for each connection acquires a
//! permit and then sends the next request of the list. There is no queue beside the list itself.
//!
//! Non-goals: HTTP/2; pipelining; ranges and other response formats.

use super::client::Client;
use super::tier::Tier;
use crate::relay::timer::Timer;
use crate::sample;
use anyhow::{Context as _, Result};
use http_body_util::BodyExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The body of one response in this many is compared with the content, after the clock has stopped.
const CHECK_EVERY: usize = 64;
/// Of longer bodies, only the length is compared.
const CHECKED_BYTES_MAX: u64 = 16 << 20;

/// A schedule of requests.
#[derive(Debug)]
pub struct Schedule {
    /// Host and port of the server.
    pub authority: String,
    pub targets: Vec<Target>,
    /// By time.
    pub requests: Vec<Scheduled>,
    /// Connections at a time.
    pub connections: usize,
    /// For a response; and for requests to be sent after the last one was due.
    pub timeout: Duration,
}

/// A file on the server.
#[derive(Debug, Clone)]
pub struct Target {
    pub path: String,
    pub bytes: u64,
    /// Of its bytes: [`sample::bytes`].
    pub seed: u64,
}

/// A scheduled request.
#[derive(Debug, Clone, Copy)]
pub struct Scheduled {
    /// Since the replay began.
    pub due: Duration,
    /// Index of the target.
    pub target: u32,
}

/// The result of a request. Times are since the replay began; those of a request without a response are when it failed.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// Index of the request.
    pub index: usize,
    pub due: Duration,
    pub sent: Duration,
    pub first_byte: Duration,
    pub last_byte: Duration,
    /// Of the body, as far as it was received.
    pub bytes: u64,
    pub outcome: Outcome,
    pub tier: Option<Tier>,
}

impl Record {
    /// Of a request without a response.
    fn new(index: usize, due: Duration, sent: Duration, outcome: Outcome) -> Self {
        Self { index, due, sent, first_byte: sent, last_byte: sent, bytes: 0, outcome, tier: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// 200 and the expected number of bytes; some bodies are compared.
    Complete,
    /// Another status.
    Status(u16),
    /// 200, and other bytes.
    Wrong,
    /// No response, or not to its end, or not in time.
    Failed,
    /// Not sent before the time for the whole replay was over.
    Unsent,
}

/// Replays a schedule. Returns a record for each request, in order.
pub async fn replay(schedule: Schedule) -> Result<Vec<Record>> {
    let connections = schedule.connections.max(1);
    let replay =
        Arc::new(Replay { schedule, clock: Instant::now(), due: Semaphore::new(0), next: AtomicUsize::new(0) });
    let mut workers = JoinSet::new();
    for _ in 0..connections {
        workers.spawn(Arc::clone(&replay).work());
    }
    replay.pace(connections).await?;
    let mut records = Vec::with_capacity(replay.schedule.requests.len());
    while let Some(worked) = workers.join_next().await {
        records.extend(worked.context("a connection's task failed")?);
    }
    records.extend(replay.unsent(records.len()));
    records.sort_unstable_by_key(|record| record.index);
    Ok(records)
}

struct Replay {
    schedule: Schedule,
    clock: Instant,
    /// A permit for each request that is due and not taken by a worker.
    due: Semaphore,
    /// The first request that was not taken.
    next: AtomicUsize,
}

impl Replay {
    /// Releases requests when they are due, and then lets the workers end.
    async fn pace(&self, connections: usize) -> Result<()> {
        let timer = Timer::new()?;
        let requests = &self.schedule.requests;
        let mut released = 0;
        while let Some(next) = requests.get(released) {
            timer.until(self.clock + next.due).await?;
            let now = self.clock.elapsed();
            let due = requests[released..].partition_point(|request| request.due <= now);
            self.due.add_permits(due);
            released += due;
        }
        // One for each worker, which finds that the list is at its end.
        self.due.add_permits(connections);
        Ok(())
    }

    /// One connection's worker. Ends when all requests are sent, or the time for them is over.
    async fn work(self: Arc<Self>) -> Vec<Record> {
        let mut client = Client::new(self.schedule.authority.clone());
        let mut records = Vec::new();
        while let Some(index) = self.take().await {
            records.push(self.send(&mut client, index).await);
        }
        records
    }

    /// Waits for the next request to be due.
    async fn take(&self) -> Option<usize> {
        self.due.acquire().await.ok()?.forget();
        let last = self.schedule.requests.last()?.due;
        if self.clock.elapsed() > last + self.schedule.timeout {
            return None;
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < self.schedule.requests.len()).then_some(index)
    }

    async fn send(&self, client: &mut Client, index: usize) -> Record {
        let Scheduled { due, target } = self.schedule.requests[index];
        let target = &self.schedule.targets[target as usize];
        let sent = self.clock.elapsed();
        let mut record = Record::new(index, due, sent, Outcome::Failed);
        let exchange = self.exchange(client, target, &mut record);
        let ended = timeout(self.schedule.timeout, exchange).await;
        if record.outcome != Outcome::Complete {
            client.close();
        }
        if !matches!(ended, Ok(Ok(()))) {
            record.last_byte = self.clock.elapsed();
        }
        record
    }

    /// Sends, reads the response, and completes the record meanwhile.
    async fn exchange(&self, client: &mut Client, target: &Target, record: &mut Record) -> Result<()> {
        let mut response = client.get(&target.path).await?;
        let status = response.status().as_u16();
        record.tier = Tier::from_headers(response.headers());
        let checked = record.index.is_multiple_of(CHECK_EVERY) && target.bytes <= CHECKED_BYTES_MAX;
        let mut body = Vec::new();
        // A response that is longer than it should be is not read to its end, which may never come.
        while record.bytes <= target.bytes
            && let Some(frame) = response.frame().await
        {
            let Ok(data) = frame?.into_data() else { continue };
            if record.bytes == 0 {
                record.first_byte = self.clock.elapsed();
            }
            record.bytes += data.len() as u64;
            if checked && record.bytes <= target.bytes {
                body.extend_from_slice(&data);
            }
        }
        record.last_byte = self.clock.elapsed();
        let length = usize::try_from(target.bytes)?;
        record.outcome = match status {
            200 if record.bytes != target.bytes => Outcome::Wrong,
            200 if checked && body != sample::bytes(length, target.seed) => Outcome::Wrong,
            200 => Outcome::Complete,
            status => Outcome::Status(status),
        };
        Ok(())
    }

    /// Records of the requests that were not sent: the last of the list.
    fn unsent(&self, sent: usize) -> impl Iterator<Item = Record> {
        let end = self.clock.elapsed();
        let record =
            move |(index, Scheduled { due, .. }): (usize, &Scheduled)| Record::new(index, *due, end, Outcome::Unsent);
        self.schedule.requests.iter().enumerate().skip(sent).map(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::Full;
    use hyper::service::service_fn;
    use hyper::{Request, Response, body::Incoming, server::conn::http1};
    use hyper_util::rt::TokioIo;
    use std::convert::Infallible;
    use std::net::Ipv4Addr;
    use tokio::net::TcpListener;

    const TIMEOUT: Duration = Duration::from_millis(600);

    /// Responds by the path: `/LENGTH/SEED/…` are good bytes, and the rest names a fault.
    async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let path = request.uri().path().to_owned();
        let mut parts = path.split('/').skip(1);
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok()).expect("a number");
        let mut body = sample::bytes(number() as usize, number());
        let mut status = 200;
        match parts.next() {
            Some("stall") => tokio::time::sleep(Duration::from_millis(300)).await,
            Some("never") => std::future::pending().await,
            Some("status") => status = 504,
            Some("short") => drop(body.pop()),
            Some("wrong") => body[0] ^= 1,
            _ => {}
        }
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = hyper::StatusCode::from_u16(status).expect("a status");
        response.headers_mut().append("server-timing", "tier;desc=\"disk\"".parse().expect("a value"));
        Ok(response)
    }

    /// A server whose connections are closed after some responses.
    async fn server(answers: usize) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let authority = listener.local_addr().expect("it is bound").to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let left = AtomicUsize::new(answers);
                tokio::spawn(async move {
                    let answer = |request| {
                        let last = left.fetch_sub(1, Ordering::Relaxed) == 1;
                        async move {
                            let mut response = answer(request).await?;
                            if last {
                                response.headers_mut().insert("connection", "close".parse().expect("a value"));
                            }
                            Ok::<_, Infallible>(response)
                        }
                    };
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await
                });
            }
        });
        authority
    }

    fn schedule(authority: String, connections: usize, requests: &[(u64, &str)]) -> Schedule {
        let target = |(_, trouble): &(u64, &str)| Target { path: format!("/1000/7/{trouble}"), bytes: 1000, seed: 7 };
        let request = |(index, (due, _)): (usize, &(u64, &str))| Scheduled {
            due: Duration::from_millis(*due),
            target: index as u32,
        };
        Schedule {
            authority,
            targets: requests.iter().map(target).collect(),
            requests: requests.iter().enumerate().map(request).collect(),
            connections,
            timeout: TIMEOUT,
        }
    }

    #[tokio::test]
    async fn requests_are_sent_when_they_are_due_whatever_others_do() {
        let requests = [(0, "stall"), (20, ""), (40, ""), (100, "")];
        let records = replay(schedule(server(100).await, 4, &requests)).await.expect("it ends");
        for (record, (due, trouble)) in records.iter().zip(requests) {
            assert_eq!((record.outcome, record.bytes), (Outcome::Complete, 1000), "{record:?}");
            assert_eq!(record.tier, Some(Tier::Disk));
            assert_eq!(record.due, Duration::from_millis(due));
            assert!(record.sent >= record.due && record.sent < record.due + Duration::from_millis(150), "{record:?}");
            assert!(record.sent <= record.first_byte && record.first_byte <= record.last_byte, "{record:?}");
            let latency = record.last_byte - record.due;
            assert_eq!(latency >= Duration::from_millis(300), trouble == "stall", "{record:?}");
        }
    }

    /// The whole point: the latency of requests that were due during a stall includes it, although they were sent
    /// later.
    #[tokio::test]
    async fn a_stall_counts_for_the_requests_that_were_due_during_it() {
        let requests = [(0, "stall"), (100, ""), (200, "")];
        let records = replay(schedule(server(100).await, 1, &requests)).await.expect("it ends");
        for (record, least) in records.iter().zip([300, 190, 90]) {
            assert_eq!(record.outcome, Outcome::Complete);
            let (latency, service) = (record.last_byte - record.due, record.last_byte - record.sent);
            assert!(latency >= Duration::from_millis(least), "{record:?}");
            assert!(record.index == 0 || service < latency, "{record:?}");
        }
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_response_is_recorded() {
        let requests = [(0, "wrong"), (1, "short"), (2, "status"), (3, "never"), (4, "")];
        let records = replay(schedule(server(100).await, 2, &requests)).await.expect("it ends");
        let outcomes: Vec<Outcome> = records.iter().map(|record| record.outcome).collect();
        use Outcome::{Complete, Failed, Status, Wrong};
        assert_eq!(outcomes, [Wrong, Wrong, Status(504), Failed, Complete]);
        assert!(records[3].last_byte - records[3].sent >= TIMEOUT);
    }

    #[tokio::test]
    async fn a_connection_that_the_server_closes_is_opened_again() {
        let requests = [(0, ""); 20];
        let records = replay(schedule(server(3).await, 2, &requests)).await.expect("it ends");
        assert!(records.iter().all(|record| record.outcome == Outcome::Complete), "{records:?}");
    }

    #[tokio::test]
    async fn it_ends_with_a_server_that_never_responds_and_with_none_at_all() {
        let requests = [(0, "never"); 10];
        let begun = Instant::now();
        let records = replay(schedule(server(100).await, 2, &requests)).await.expect("it ends");
        let count = |outcome| records.iter().filter(|record| record.outcome == outcome).count();
        assert_eq!((records.len(), count(Outcome::Failed) + count(Outcome::Unsent)), (10, 10));
        assert!(count(Outcome::Unsent) >= 6, "{records:?}");
        assert!(begun.elapsed() < TIMEOUT * 4);

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let unused = listener.local_addr().expect("it is bound").to_string();
        drop(listener);
        let records = replay(schedule(unused, 2, &requests)).await.expect("it ends");
        assert!(records.iter().all(|record| record.outcome == Outcome::Failed), "{records:?}");
        assert!(replay(schedule(String::new(), 2, &[])).await.expect("it ends").is_empty());
    }
}
