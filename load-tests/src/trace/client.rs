//! One persistent HTTP/1.1 connection, which is opened again when the server has closed it.

use anyhow::{Result, ensure};
use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HOST;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// At most one connection to one server.
pub struct Client {
    /// Host and port.
    authority: String,
    connection: Option<SendRequest<Empty<Bytes>>>,
}

impl Client {
    /// Not connected yet.
    pub fn new(authority: String) -> Self {
        Self { authority, connection: None }
    }

    /// Sends a GET, and returns when the response's head was received. The body has to be read before the next request.
    pub async fn get(&mut self, path: &str) -> Result<Response<Incoming>> {
        if let Some(mut used) = self.connection.take()
            && used.ready().await.is_ok()
        {
            match used.send_request(self.request(path)?).await {
                Ok(response) => {
                    self.connection = Some(used);
                    return Ok(response);
                }
                // The server has just closed an idle connection: a GET may be sent again (RFC 9110, section 9.2.2).
                Err(error) => ensure!(error.is_canceled() || error.is_incomplete_message(), error),
            }
        }
        let mut fresh = self.connect().await?;
        let response = fresh.send_request(self.request(path)?).await?;
        self.connection = Some(fresh);
        Ok(response)
    }

    /// Closes the connection: the rest of a response may still be in flight.
    pub fn close(&mut self) {
        self.connection = None;
    }

    fn request(&self, path: &str) -> Result<Request<Empty<Bytes>>> {
        Ok(Request::get(path).header(HOST, &self.authority).body(Empty::new())?)
    }

    async fn connect(&self) -> Result<SendRequest<Empty<Bytes>>> {
        let stream = TcpStream::connect(&self.authority).await?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends when the sender is dropped; its errors are the sender's.
        tokio::spawn(connection);
        sender.ready().await?;
        Ok(sender)
    }
}
