//! One node: a `tidegate serve` process.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use super::PATIENCE;

/// What a node is started with.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) region: String,
    /// Where its configuration and its log are.
    pub(crate) dir: PathBuf,
    pub(crate) policies: PathBuf,
    /// Where it gossips.
    pub(crate) gossip: SocketAddr,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) settings: Settings,
    child: Child,
    killed: bool,
    pub(crate) addresses: Addresses,
}

/// Where a node listens; another place each time that it is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
}

/// Whether the store is new, and keys start full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    First,
    Again,
}

impl Node {
    pub(crate) fn start(settings: Settings, start: Start) -> Self {
        let (child, addresses) = spawn(&settings, start);
        Self {
            settings,
            child,
            killed: false,
            addresses,
        }
    }

    /// Ends the process without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the node runs");
        self.child.wait().expect("the node has ended");
        self.killed = true;
    }

    /// Asks the process to stop; returns its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        let asked = Command::new("kill").args(["-s", "TERM", &pid]).status();
        assert!(asked.is_ok_and(|status| status.success()), "SIGTERM");
        self.killed = true;
        self.child.wait().expect("the node has ended").code()
    }

    /// Starts a node that was killed again, under the same name.
    pub(crate) fn restart(&mut self) {
        (self.child, self.addresses) = spawn(&self.settings, Start::Again);
        self.killed = false;
    }

    /// Whether the test has ended it.
    pub(crate) const fn is_killed(&self) -> bool {
        self.killed
    }

    /// Whether it runs, as long as the test has not ended it.
    pub(crate) fn runs(&mut self) -> bool {
        self.killed || matches!(self.child.try_wait(), Ok(None))
    }

    /// The last lines that the node has logged.
    pub(crate) fn log(&self) -> String {
        let log = fs::read_to_string(self.settings.dir.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            drop(self.child.wait());
        }
    }
}

fn spawn(settings: &Settings, start: Start) -> (Child, Addresses) {
    let log = File::options()
        .create(true)
        .append(true)
        .open(settings.dir.join("log"))
        .expect("a log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .args(["serve", "--config"])
        .arg(settings.dir.join("node.toml"))
        .arg("--policies")
        .arg(&settings.policies)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    if start == Start::First {
        command.arg("--first-start");
    }
    let mut child = command.spawn().expect("the node starts");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let (told, ready) = mpsc::channel();
    thread::spawn(move || {
        if let Some(Ok(line)) = out.lines().next() {
            // Nobody waits any more for a node that was too slow.
            drop(told.send(line));
        }
    });
    let line = ready.recv_timeout(PATIENCE).unwrap_or_default();
    let Some(addresses) = Addresses::read(&line) else {
        drop(child.kill());
        let log = fs::read_to_string(settings.dir.join("log")).unwrap_or_default();
        panic!("{} is not ready: {line:?}\n{log}", settings.name);
    };
    (child, addresses)
}

impl Addresses {
    /// Reads `ready http=.. grpc=.. admin=..`.
    fn read(line: &str) -> Option<Self> {
        let address = |name: &str| {
            let mut words = line.strip_prefix("ready ")?.split(' ');
            words.find_map(|word| word.strip_prefix(name)?.parse().ok())
        };
        Some(Self {
            http: address("http=")?,
            grpc: address("grpc=")?,
            admin: address("admin=")?,
        })
    }
}
