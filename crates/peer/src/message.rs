//! Questions and answers over a stream: a length and so many bytes.

use std::io;

use nexo_types::limits::PEER_MESSAGE_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Reads one message. How long that may take is for the caller to say.
///
/// # Errors
/// If the connection ends, or the message is too long.
pub async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let len = stream.read_u32().await? as usize;
    check(len)?;
    let mut message = vec![0; len];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// Writes one message.
///
/// # Errors
/// If the connection ends, or the message is too long.
pub async fn write_message(stream: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> io::Result<()> {
    check(message.len())?;
    let mut bytes = (message.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(message);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

fn check(len: usize) -> io::Result<()> {
    if len <= PEER_MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let words = format!("a message between nodes has {len} bytes; it may have {PEER_MESSAGE_BYTES_MAX}");
    Err(io::Error::new(io::ErrorKind::InvalidData, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_that_is_too_long_is_refused_on_both_sides() {
        let mut out = Vec::new();
        write_message(&mut out, b"who leads?").await.unwrap();
        assert_eq!(read_message(&mut &out[..]).await.unwrap(), b"who leads?");
        let long = vec![0; PEER_MESSAGE_BYTES_MAX + 1];
        assert_eq!(write_message(&mut out, &long).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read_message(&mut &[255; 9][..]).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
