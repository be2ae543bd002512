//! Processes, a raw HTTP client and a Redis server for the tests of this directory.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// How long anything may take that must happen at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A node with port 0 everywhere and a memory store.
pub(crate) const NODE: &str = r#"
region = "us"
name = "us-1"
[http]
listen = "127.0.0.1:0"
[grpc]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
"#;

/// A directory that goes with the test.
pub(crate) struct Dir(PathBuf);

/// A `tidegate serve` process. Killed with the test if it still runs.
pub(crate) struct Process {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
    child: Child,
    dir: Dir,
}

/// An answer over HTTP.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
    headers: Vec<(String, String)>,
}

/// A `redis-server` process on a free port of the loopback interface.
pub(crate) struct Redis {
    pub(crate) address: SocketAddr,
    child: Child,
    _dir: Dir,
}

impl Dir {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "tidegate-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the temporary directory is writable");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("the test's directory is writable");
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let gone = std::fs::remove_dir_all(&self.0);
        drop(gone);
    }
}

impl Process {
    /// Starts a node and waits until it says that it is ready.
    pub(crate) async fn start(node: &str, policies: &str) -> Self {
        Self::start_limited(node, policies, None).await
    }

    /// The same with a limit on open files.
    pub(crate) async fn start_limited(node: &str, policies: &str, files_max: Option<u32>) -> Self {
        let dir = Dir::new();
        let (node, policies) = (
            dir.write("node.toml", node),
            dir.write("policies.toml", policies),
        );
        dir.write("token", "a token for the tests");
        dir.write("key.secret", "000102030405060708090a0b0c0d0e0f");
        let limit = files_max.map_or_else(String::new, |files| format!("ulimit -n {files}; "));
        let log = std::fs::File::create(dir.path().join("log")).expect("the log can be created");
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(format!("{limit}exec \"$@\""))
            .args([
                "sh",
                env!("CARGO_BIN_EXE_tidegate"),
                "serve",
                "--first-start",
            ])
            .arg("--config")
            .arg(node)
            .arg("--policies")
            .arg(policies)
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("the binary was built with the tests");
        let stdout = child.stdout.take().expect("the output is piped");
        let mut lines = BufReader::new(stdout).lines();
        let line = timeout(PATIENCE, lines.next_line())
            .await
            .expect("the node is ready in time");
        let line = line
            .expect("the output can be read")
            .expect("the node says that it is ready");
        let address = |name: &str| {
            let word = line.split(' ').find_map(|word| word.strip_prefix(name));
            word.expect("every address is told")
                .parse()
                .expect("it is an address")
        };
        Self {
            http: address("http="),
            grpc: address("grpc="),
            admin: address("admin="),
            child,
            dir,
        }
    }

    pub(crate) async fn check(&self, body: &str) -> Answer {
        post(self.http, "/v1/check", body).await
    }

    /// Checks one user in the domain `api`.
    pub(crate) async fn check_user(&self, user: &str) -> Answer {
        self.check(&user_body(user)).await
    }

    pub(crate) async fn metrics(&self) -> String {
        get(self.admin, "/metrics").await.body
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).expect("the log is there")
    }

    pub(crate) async fn signal(&self, signal: &str) {
        let id = self.child.id().expect("the process still runs").to_string();
        let sent = Command::new("kill").args([signal, &id]).status().await;
        assert!(sent.expect("kill is there").success());
    }

    /// The exit code and the log; waits for the end.
    pub(crate) async fn end(mut self) -> (Option<i32>, String) {
        let ended = timeout(PATIENCE, self.child.wait()).await;
        let ended = ended.expect("the node ends in time");
        let code = ended.expect("the process can be waited for").code();
        (code, self.log())
    }
}

pub(crate) fn user_body(user: &str) -> String {
    format!(r#"{{"domain":"api","attributes":{{"user":"{user}"}}}}"#)
}

/// The value of one series of a scrape.
pub(crate) fn series(metrics: &str, name: &str) -> Option<u64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// The sum of all series that begin like this.
pub(crate) fn sum(metrics: &str, prefix: &str) -> u64 {
    let lines = metrics.lines().filter(|line| line.starts_with(prefix));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    values.sum()
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(candidate, _)| candidate == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("the body is JSON")
    }
}

pub(crate) async fn get(to: SocketAddr, path: &str) -> Answer {
    request(to, &format!("GET {path} HTTP/1.1\r\n"), "").await
}

pub(crate) async fn post(to: SocketAddr, path: &str, body: &str) -> Answer {
    request(to, &format!("POST {path} HTTP/1.1\r\n"), body).await
}

/// Sends one request on a connection of its own; `head` is its first line and own headers.
pub(crate) async fn request(to: SocketAddr, head: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(to).await.expect("the node listens");
    let length = body.len();
    let text = format!("{head}host: test\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream
        .write_all(text.as_bytes())
        .await
        .expect("the head is taken");
    // A node that refuses a body may close while it is being sent.
    let sent = stream.write_all(body.as_bytes()).await;
    drop(sent);
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    drop(read.expect("the answer comes in time"));
    parse(&String::from_utf8(answer).expect("the answer is text"))
}

fn parse(text: &str) -> Answer {
    let (head, body) = text.split_once("\r\n\r\n").expect("the answer has a head");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let headers = lines.filter_map(|line| line.split_once(": "));
    Answer {
        status: status
            .expect("the answer has a status")
            .parse()
            .expect("it is a number"),
        headers: headers
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}

impl Redis {
    pub(crate) async fn start() -> Self {
        let dir = Dir::new();
        let free = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let address = free.local_addr().expect("it is bound");
        drop(free);
        let child = Command::new("redis-server")
            .args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("redis-server is installed");
        let redis = Self {
            address,
            child,
            _dir: dir,
        };
        timeout(PATIENCE, async {
            while redis
                .command("PING")
                .await
                .is_none_or(|answer| !answer.contains("PONG"))
            {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .expect("redis-server starts in time");
        redis
    }

    /// Sends one inline command and reads what comes first.
    pub(crate) async fn command(&self, command: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).await.ok()?;
        stream
            .write_all(format!("{command}\r\n").as_bytes())
            .await
            .ok()?;
        let mut answer = [0; 256];
        let read = stream.read(&mut answer).await.ok()?;
        Some(String::from_utf8_lossy(&answer[..read]).into_owned())
    }

    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("the server can be killed");
    }

    /// The settings of a node that uses this server as its only shard.
    pub(crate) fn node(&self, deadline: &str) -> String {
        let address = self.address;
        format!(
            "nodes_max = 1\nkey_secret_file = \"key.secret\"\n{NODE}\ntoken_file = \"token\"\n\
             [store]\nkind = \"redis\"\ndeadline = \"{deadline}\"\n\
             shards = [{{ name = \"a\", url = \"redis://{address}\" }}]\n"
        )
    }
}
