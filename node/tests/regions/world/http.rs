//! The smallest HTTP client that keeps its connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than any deadline of a node, so that a node that hangs is told from one that is slow.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// A connection that is open for as long as it works.
#[derive(Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Client {
    pub(crate) const fn new(address: SocketAddr) -> Self {
        Self {
            address,
            stream: None,
        }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request and reads the answer, over a new connection if there is none. A request
    /// that fails is not repeated.
    pub(crate) async fn ask(
        &mut self,
        request: &str,
        fields: &str,
        body: &str,
    ) -> io::Result<Answer> {
        let asked = async {
            let mut stream = match self.stream.take() {
                Some(stream) => stream,
                None => {
                    let stream = TcpStream::connect(self.address).await?;
                    stream.set_nodelay(true)?;
                    BufReader::new(stream)
                }
            };
            let len = body.len();
            let text = format!(
                "{request} HTTP/1.1\r\nHost: world\r\n{fields}Content-Type: application/json\r\n\
                 Content-Length: {len}\r\n\r\n{body}"
            );
            stream.write_all(text.as_bytes()).await?;
            let answer = read(&mut stream).await?;
            io::Result::Ok((answer, stream))
        };
        let (answer, stream) = timeout(ANSWER_MAX, asked).await??;
        self.stream = Some(stream);
        Ok(answer)
    }

    pub(crate) async fn get(&mut self, path: &str) -> io::Result<Answer> {
        self.ask(&format!("GET {path}"), "", "").await
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("the body is JSON")
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Answer> {
    let status = line(stream).await?;
    let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or(io::ErrorKind::InvalidData)?;
    let mut len = None;
    loop {
        let line = line(stream).await?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
        if name.eq_ignore_ascii_case("content-length") {
            len = value.trim().parse().ok();
        }
    }
    let mut body = vec![0; len.ok_or(io::ErrorKind::InvalidData)?];
    stream.read_exact(&mut body).await?;
    let body = String::from_utf8(body).map_err(io::Error::other)?;
    Ok(Answer { status, body })
}

async fn line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line.truncate(line.trim_end().len());
    Ok(line)
}
