//! A line between two programs, which can go silent: nothing is refused or reset, nothing comes.

use std::{net::SocketAddr, path::PathBuf};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, UnixStream},
    sync::watch,
    task::JoinHandle,
};

/// Where a line leads.
#[derive(Debug, Clone)]
pub(crate) enum To {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Carries what comes to its address on, for as long as it is not silent.
pub(crate) struct Line {
    pub(crate) address: SocketAddr,
    silent: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut silent: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let _ = silent.wait_for(|silent| !silent).await;
        let Ok(got @ 1..) = from.read(&mut buffer).await else { break };
        // Bytes on their way when the line goes silent are lost with it, or come later, as with
        // TCP.
        let _ = silent.wait_for(|silent| !silent).await;
        if to.write_all(&buffer[..got]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

impl Line {
    pub(crate) async fn to(end: To) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (silent, heard) = watch::channel(false);
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (end, mut heard) = (end.clone(), heard.clone());
                tokio::spawn(async move {
                    let _ = heard.wait_for(|silent| !silent).await;
                    let (read, write) = near.into_split();
                    match end {
                        To::Tcp(address) => {
                            let Ok(far) = tokio::net::TcpStream::connect(address).await else { return };
                            let (back, forth) = far.into_split();
                            tokio::join!(carry(read, forth, heard.clone()), carry(back, write, heard));
                        }
                        To::Unix(path) => {
                            let Ok(far) = UnixStream::connect(path).await else { return };
                            let (back, forth) = far.into_split();
                            tokio::join!(carry(read, forth, heard.clone()), carry(back, write, heard));
                        }
                    }
                });
            }
        });
        Line { address, silent, task }
    }

    pub(crate) fn set_silent(&self, is: bool) {
        self.silent.send_replace(is);
    }
}
