//! The way to a gateway over TLS and HTTP/1.1: a front, as [`crate::http2`] is one, which passes bytes on as they are.

use crate::http2::{SCHEME, encrypted, has_scheme, head};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// Starts a front of the listener at `gateway`, which has this certificate; returns its address.
pub async fn front(gateway: SocketAddr, certificate: &Path) -> SocketAddr {
    let certificate: PathBuf = certificate.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let certificate = certificate.clone();
            tokio::spawn(async move {
                if let Err(error) = pass_on(stream, gateway, &certificate).await {
                    eprintln!("a request was not passed on over TLS: {error}");
                }
            });
        }
    });
    address
}

/// Passes one request on, over a connection of its own, and its response back.
async fn pass_on(mut stream: TcpStream, gateway: SocketAddr, certificate: &Path) -> Result<(), String> {
    let mut head = head(&mut stream).await?;
    if !has_scheme(head.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name)) {
        let (name, value) = SCHEME;
        head.insert_str(head.len() - 2, &format!("{name}: {value}\r\n"));
    }
    let mut encrypted = encrypted(gateway, certificate, "http/1.1").await;
    encrypted.write_all(head.as_bytes()).await.map_err(|error| error.to_string())?;
    copy_bidirectional(&mut stream, &mut encrypted).await.map(drop).map_err(|error| error.to_string())
}
