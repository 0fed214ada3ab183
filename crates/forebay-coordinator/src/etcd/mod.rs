//! A client of etcd, as far as candidates need one: leases, and keys in transactions.
//!
//! etcd serves its API as JSON over HTTP/1.1 next to gRPC. Candidates ask a few questions a second,
//! so they speak that, with the TLS library that the nodes use among each other. A client for gRPC
//! would add an asynchronous runtime and a hundred crates.
//!
//! A member that does not answer costs [`ATTEMPT`], after which the next one is asked. Every call
//! here may be repeated.

mod http;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Connection;
pub use http::{Endpoint, Tls};
use serde_json::{Value, json};
use std::io;
use std::time::{Duration, Instant};

/// One member has this long to answer; the others of three can then be asked before a lease ends.
const ATTEMPT: Duration = Duration::from_millis(400);

/// Changes in one transaction: one operation less than etcd's default limit.
pub const CHANGES_MAX: usize = 127;

/// Keys in one answer.
const PAGE_KEYS: usize = 5000;

/// gRPC's code for what does not exist.
const NOT_FOUND: u64 = 5;

/// Where etcd is.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its members.
    pub endpoints: Vec<Endpoint>,
    /// How to reach members with TLS.
    pub tls: Option<Tls>,
    /// Prefix of the keys of this cluster.
    pub prefix: String,
}

/// See the module.
pub struct Etcd {
    place: Place,
    /// The member that is asked now, and the connection to it.
    at: usize,
    connection: Option<Connection>,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Below the prefix.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Revision of the store at which the key was created.
    pub created: u64,
    /// The lease with which the key ends; 0: none.
    pub lease: u64,
}

/// What a transaction does to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Gives the key this value.
    Put(String, String),
    /// Removes the key.
    Delete(String),
}

impl Etcd {
    /// Connects when it is asked something.
    pub fn new(place: Place) -> Self {
        Etcd { place, at: 0, connection: None }
    }

    /// Grants a lease of `seconds` or more; returns its number, and its seconds.
    ///
    /// # Errors
    /// etcd does not answer by `deadline`, or has no leader.
    pub fn grant(&mut self, seconds: u64, deadline: Instant) -> io::Result<(u64, u64)> {
        let answer = self.call("/v3/lease/grant", &json!({ "TTL": seconds.to_string() }), deadline)?;
        Ok((number(&answer["ID"]), number(&answer["TTL"])))
    }

    /// Renews a lease; returns for how many seconds. 0: it has ended.
    ///
    /// # Errors
    /// As [`Etcd::grant`].
    pub fn keep_alive(&mut self, lease: u64, deadline: Instant) -> io::Result<u64> {
        let answer = self.call("/v3/lease/keepalive", &json!({ "ID": lease.to_string() }), deadline)?;
        Ok(number(&answer["result"]["TTL"]))
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// As [`Etcd::grant`], or it has ended.
    pub fn revoke(&mut self, lease: u64, deadline: Instant) -> io::Result<()> {
        self.call("/v3/lease/revoke", &json!({ "ID": lease.to_string() }), deadline).map(drop)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As [`Etcd::grant`].
    pub fn get(&mut self, key: &str, deadline: Instant) -> io::Result<Option<Entry>> {
        let answer = self.call("/v3/kv/range", &json!({ "key": self.encoded(key) }), deadline)?;
        Ok(self.entries(&answer).pop())
    }

    /// All keys that begin with `start`; `between` is called after each page.
    ///
    /// # Errors
    /// As [`Etcd::grant`], for one page; or `between` fails.
    pub fn list(
        &mut self,
        start: &str,
        page_time: Duration,
        mut between: impl FnMut(&mut Self) -> io::Result<()>,
    ) -> io::Result<Vec<Entry>> {
        let mut end = format!("{}{start}", self.place.prefix).into_bytes();
        // The first key that does not begin so.
        *end.last_mut().ok_or(io::ErrorKind::InvalidInput)? += 1;
        let (end, mut from) = (STANDARD.encode(end), start.to_owned());
        let mut all = Vec::new();
        loop {
            let question =
                json!({ "key": self.encoded(&from), "range_end": end, "limit": PAGE_KEYS.to_string() });
            let answer = self.call("/v3/kv/range", &question, Instant::now() + page_time)?;
            all.append(&mut self.entries(&answer));
            match all.last() {
                Some(last) if answer["more"] == true => from = format!("{}\0", last.key),
                _ => return Ok(all),
            }
            between(self)?;
        }
    }

    /// Creates a key that ends with a lease, unless it exists; returns the key as it is then.
    ///
    /// # Errors
    /// As [`Etcd::grant`].
    pub fn create(&mut self, key: &str, value: &str, lease: u64, deadline: Instant) -> io::Result<Entry> {
        let name = self.encoded(key);
        let put = json!({ "key": name, "value": STANDARD.encode(value), "lease": lease.to_string() });
        let question = json!({
            "compare": [{ "target": "CREATE", "key": name, "create_revision": "0", "result": "EQUAL" }],
            "success": [{ "request_put": put }],
            "failure": [{ "request_range": { "key": name } }],
        });
        let answer = self.call("/v3/kv/txn", &question, deadline)?;
        if answer["succeeded"] == true {
            let created = number(&answer["header"]["revision"]);
            return Ok(Entry { key: key.to_owned(), value: value.to_owned(), created, lease });
        }
        let found = self.entries(&answer["responses"][0]["response_range"]).pop();
        found.ok_or_else(|| io::Error::other("a key is there and is not"))
    }

    /// Makes at most [`CHANGES_MAX`] changes to different keys if `key` was created at revision
    /// `created`, and none of them otherwise; returns whether it was. `counter` exists, and gets
    /// `count` with them, unless it has as much: then they have been made already, and what arrives
    /// late does nothing.
    ///
    /// # Errors
    /// As [`Etcd::grant`]; the changes may have been made, or may still be.
    pub fn change_if(
        &mut self,
        (key, created): (&str, u64),
        (counter, count): (&str, &str),
        changes: &[Change],
        deadline: Instant,
    ) -> io::Result<bool> {
        let operation = |change: &Change| match change {
            Change::Put(key, value) => {
                json!({ "request_put": { "key": self.encoded(key), "value": STANDARD.encode(value) } })
            }
            Change::Delete(key) => json!({ "request_delete_range": { "key": self.encoded(key) } }),
        };
        let counts = Change::Put(counter.to_owned(), count.to_owned());
        let (name, counter, at) = (self.encoded(key), self.encoded(counter), created.to_string());
        let question = json!({
            "compare": [
                { "target": "CREATE", "key": name, "create_revision": at, "result": "EQUAL" },
                { "target": "VALUE", "key": counter, "value": STANDARD.encode(count), "result": "LESS" },
            ],
            "success": changes.iter().chain([&counts]).map(operation).collect::<Vec<_>>(),
            "failure": [{ "request_range": { "key": name } }, { "request_range": { "key": counter } }],
        });
        let answer = self.call("/v3/kv/txn", &question, deadline)?;
        if answer["succeeded"] == true {
            return Ok(true);
        }
        let found = |number: usize| self.entries(&answer["responses"][number]["response_range"]).pop();
        if found(0).is_none_or(|entry| entry.created != created) {
            return Ok(false);
        }
        match found(1).is_some_and(|entry| entry.value.as_str() >= count) {
            true => Ok(true),
            false => Err(io::Error::other("the counter of changes is gone from etcd")),
        }
    }

    fn encoded(&self, key: &str) -> String {
        STANDARD.encode(format!("{}{key}", self.place.prefix))
    }

    fn entries(&self, answer: &Value) -> Vec<Entry> {
        let text = |value: &Value| {
            let bytes = STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
            String::from_utf8(bytes).unwrap_or_default()
        };
        let entry = |kv: &Value| {
            let key = text(&kv["key"]).strip_prefix(&self.place.prefix)?.to_owned();
            let (created, lease) = (number(&kv["create_revision"]), number(&kv["lease"]));
            Some(Entry { key, value: text(&kv["value"]), created, lease })
        };
        answer["kvs"].as_array().map_or_else(Vec::new, |kvs| kvs.iter().filter_map(entry).collect())
    }

    /// Asks one member after the other.
    fn call(&mut self, path: &str, question: &Value, deadline: Instant) -> io::Result<Value> {
        let body = question.to_string().into_bytes();
        // A connection that was closed meanwhile costs an attempt, but no member.
        let attempts = self.place.endpoints.len() + usize::from(self.connection.is_some());
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        for _ in 0..attempts {
            if Instant::now() >= deadline {
                break;
            }
            let was_open = self.connection.is_some();
            match self.attempt(path, &body, deadline.min(Instant::now() + ATTEMPT)) {
                Ok(answer) => return Ok(answer),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(e),
                Err(e) => {
                    last = io::Error::new(e.kind(), format!("{}: {e}", self.place.endpoints[self.at]));
                    self.connection = None;
                    let is_late = matches!(e.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock);
                    if !was_open || is_late {
                        self.at = (self.at + 1) % self.place.endpoints.len();
                    }
                }
            }
        }
        Err(last)
    }

    fn attempt(&mut self, path: &str, body: &[u8], deadline: Instant) -> io::Result<Value> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let endpoint = &self.place.endpoints[self.at];
                none.insert(Connection::open(endpoint, self.place.tls.as_ref(), deadline)?)
            }
        };
        let (status, answer) = connection.post(path, body, deadline)?;
        let answer: Value = serde_json::from_slice(&answer)?;
        match (status, number(&answer["code"])) {
            (200, _) if answer["error"].is_null() => Ok(answer),
            (_, NOT_FOUND) => Err(io::Error::new(io::ErrorKind::NotFound, "the lease has ended")),
            _ => {
                let why = &answer["error"];
                let why = why.as_str().or(why["message"].as_str()).unwrap_or("an unknown error");
                Err(io::Error::other(format!("status {status}, {why}")))
            }
        }
    }
}

/// Reads a number: etcd writes those of 64 bits as texts, and leaves out those that are 0.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}
