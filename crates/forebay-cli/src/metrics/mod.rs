//! `GET /metrics`: what an agent reports, for Prometheus and whatever reads its formats.
//!
//! One thread serves one request at a time, each with deadlines and a bounded size: a scrape comes
//! every few seconds, and a metrics port must not become a way to load an agent. It asks the agent
//! over its socket as any program does, so it can show nothing that `forebay status` does not, and
//! hold no lock of the agent. It has no encryption and no token, so it listens on loopback only;
//! what scrapes from another node goes through a proxy or an exporter of that node.

mod text;

use forebay_client::{Client, ClientConfig};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use text::{Format, Snapshot};

/// Longest wait for a request, and for its answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest request.
const REQUEST_BYTES: usize = 8 << 10;

/// Serves the metrics of the agent behind `socket` until the process ends. Returns the address.
///
/// # Errors
/// If nothing can listen there.
pub fn start(listen: SocketAddr, socket: PathBuf) -> Result<SocketAddr, String> {
    let failed = |e: io::Error| format!("metrics.listen = \"{listen}\": {e}");
    let listener = TcpListener::bind(listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    std::thread::Builder::new()
        .name("metrics".into())
        .spawn(move || serve(&listener, &socket))
        .map_err(failed)?;
    tracing::info!(%address, "metrics are served");
    Ok(address)
}

fn serve(listener: &TcpListener, socket: &std::path::Path) {
    let config = ClientConfig { socket: Some(socket.to_owned()), quiet: true, ..ClientConfig::from_env() };
    let client = Client::new(config);
    loop {
        let answered = listener.accept().and_then(|(stream, _)| answer(stream, &client));
        if let Err(error) = answered {
            tracing::debug!(%error, "a request for metrics was not answered");
            // Out of descriptors, for example: no busy loop.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn answer(mut stream: TcpStream, client: &Client) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = request(&mut stream)?;
    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => {
            let is_open = request.to_ascii_lowercase().contains("application/openmetrics-text");
            let format = if is_open { Format::OpenMetrics } else { Format::Plain };
            match snapshot(client) {
                Ok(snapshot) => ("200 OK", format.content_type(), snapshot.text(format)),
                Err(e) => {
                    ("503 Service Unavailable", "text/plain", format!("the agent does not answer: {e}\n"))
                }
            }
        }
        ("GET" | "HEAD", _) => ("404 Not Found", "text/plain", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "only GET is answered\n".to_owned()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    if method == "HEAD" { Ok(()) } else { stream.write_all(body.as_bytes()) }
}

/// The head of a request, as text.
fn request(stream: &mut TcpStream) -> io::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > REQUEST_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no end of the request"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&part[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn snapshot(client: &Client) -> io::Result<Snapshot> {
    let status = client.admin().status()?;
    let memory = client.admin().memory()?;
    // The coordinator may be away; the agent's own metrics are there all the same.
    let jobs = if status.cluster.connected { client.jobs().ok() } else { None };
    Ok(Snapshot { status, memory, jobs })
}
