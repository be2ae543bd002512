//! A Redis server of a test's own, on a free loopback port, gone when the test is.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{Client, Connection};
use region::store::redis::{RedisStore, Settings, ShardSettings};

/// A machine under load may be slow, but not slower.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    port: u16,
    dir: PathBuf,
    options: Vec<String>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with more options.
    pub(crate) fn with(options: &[&str]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let name = format!("tidegate-store-{}-{port}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).expect("a directory for the server");
        drop(listener);
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let mut server = Self {
            child: spawn(port, &dir, &options),
            port,
            dir,
            options,
        };
        server.wait();
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Settings for a new store whose calls are patient.
    pub(crate) fn settings(&self) -> Settings {
        settings(&[("a", self.url())])
    }

    pub(crate) async fn store(&self) -> RedisStore {
        RedisStore::connect(self.settings()).await.expect("a store")
    }

    /// A connection of the test's own.
    pub(crate) fn connection(&self) -> Connection {
        let client = Client::open(self.url()).expect("an address");
        let connection = client.get_connection_with_timeout(PATIENCE);
        connection.expect("a connection to the server")
    }

    /// Runs one command and returns its answer.
    pub(crate) fn ask<T: redis::FromRedisValue>(&self, command: &str) -> T {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap_or_default());
        for word in words {
            cmd.arg(word);
        }
        cmd.query(&mut self.connection()).expect("an answer")
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the server runs");
        self.child.wait().expect("the server has ended");
    }

    /// Starts the server again after it was killed, with what it finds on disk.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.port, &self.dir, &self.options);
        self.wait();
    }

    /// Sends a signal that `kill` knows by this name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.is_ok_and(|status| status.success()), "signal {name}");
    }

    fn wait(&mut self) {
        let start = Instant::now();
        let client = Client::open(self.url()).expect("an address");
        while !client
            .get_connection_with_timeout(Duration::from_millis(200))
            .is_ok_and(|mut connection| redis::cmd("PING").query::<String>(&mut connection).is_ok())
        {
            let ended = self.child.try_wait().expect("the server can be asked");
            assert!(ended.is_none(), "the server has ended: {ended:?}");
            assert!(start.elapsed() < PATIENCE, "the server does not come up");
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.kill().is_ok() && self.child.wait().is_ok() {
            fs::remove_dir_all(&self.dir).ok();
        }
    }
}

fn spawn(port: u16, dir: &PathBuf, options: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(dir)
        .args(options)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed")
}

pub(crate) fn settings(shards: &[(&str, String)]) -> Settings {
    Settings {
        shards: shards
            .iter()
            .map(|(name, url)| ShardSettings {
                name: (*name).to_owned(),
                url: url.clone(),
            })
            .collect(),
        deadline: PATIENCE,
        first_start: true,
        accept_eviction: false,
    }
}
