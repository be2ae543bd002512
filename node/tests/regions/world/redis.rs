//! One shard: a `redis-server` process of the test's own.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{PATIENCE, ports};

/// The password that a shard asks for while it turns everyone away.
const PASSWORD: &str = "nobody-knows";

#[derive(Debug)]
pub(crate) struct Redis {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Redis {
    pub(crate) fn start(dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("a directory for the server");
        let port = ports::free();
        let child = spawn(port, dir);
        let mut server = Self {
            child,
            port,
            dir: dir.to_owned(),
        };
        server.wait();
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the server runs");
        self.child.wait().expect("the server has ended");
    }

    /// Starts the server again at the same address, with nothing in it.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.port, &self.dir);
        self.wait();
    }

    /// How many keys there are, the marker among them.
    pub(crate) fn keys(&self) -> u64 {
        let answer = self.ask(&["DBSIZE"]);
        let number = answer.strip_prefix(':').expect("a number");
        number.parse().expect("a number")
    }

    /// Ends every connection and lets nobody in again, without losing anything.
    pub(crate) fn turn_everyone_away(&self) {
        let password = format!("CONFIG SET requirepass {PASSWORD}");
        self.ask(&[&password, "CLIENT KILL TYPE normal SKIPME yes"]);
    }

    pub(crate) fn let_everyone_in(&self) {
        let password = format!("AUTH {PASSWORD}");
        self.ask(&[&password, "CONFIG SET requirepass \"\""]);
    }

    /// Gives commands over one connection; returns the first line of the last answer.
    pub(crate) fn ask(&self, commands: &[&str]) -> String {
        let mut answer = String::new();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("the server");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut stream = BufReader::new(stream);
        for command in commands {
            let line = format!("{command}\r\n");
            stream.get_mut().write_all(line.as_bytes()).expect("sent");
            answer.clear();
            stream.read_line(&mut answer).expect("an answer");
            assert!(!answer.starts_with('-'), "{command}: {answer}");
        }
        answer.trim_end().to_owned()
    }

    fn wait(&mut self) {
        let start = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            let ended = self.child.try_wait().expect("the server can be asked");
            assert!(ended.is_none(), "the server has ended: {ended:?}");
            assert!(start.elapsed() < PATIENCE, "the server does not come up");
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            drop(self.child.wait());
        }
    }
}

fn spawn(port: u16, dir: &Path) -> Child {
    let log = File::create(dir.join("redis.log")).expect("a log");
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(log)
        .spawn()
        .expect("redis-server is installed")
}
