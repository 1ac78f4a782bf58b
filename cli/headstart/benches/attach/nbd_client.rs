//! A minimal NBD client: connects to an export of a Unix socket and reads.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_ERROR: u32 = 1 << 31;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

/// A connection in its transmission phase.
pub(crate) struct NbdClient(UnixStream);

impl NbdClient {
    /// Connects as soon as the socket is there.
    pub(crate) fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let until = Instant::now() + Duration::from_secs(60);
        let mut stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_micros(50)),
            }
        };
        stream.read_exact(&mut [0; 18])?;
        // Fixed newstyle, no zeros.
        let mut request = 3u32.to_be_bytes().to_vec();
        request.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        let name = export.as_bytes();
        let name_len = u32::try_from(name.len()).map_err(io::Error::other)?;
        for number in [OPTION_GO, name_len + 6, name_len] {
            request.extend_from_slice(&number.to_be_bytes());
        }
        request.extend_from_slice(name);
        request.extend_from_slice(&[0, 0]);
        stream.write_all(&request)?;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let [kind, len] = [12, 16].map(|at| u32::from_be_bytes(std::array::from_fn(|i| head[at + i])));
            io::copy(&mut (&stream).take(len.into()), &mut io::sink())?;
            match kind {
                REPLY_ACK => return Ok(Self(stream)),
                kind if kind >= REPLY_ERROR => return Err(io::Error::other("the export is refused")),
                _ => {}
            }
        }
    }

    /// Reads `buf.len()` bytes at `offset`.
    pub(crate) fn read(&mut self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let len = u32::try_from(buf.len()).map_err(io::Error::other)?;
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        // Flags and command 0: read. Then a cookie.
        request.extend_from_slice(&[0; 12]);
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&len.to_be_bytes());
        self.0.write_all(&request)?;
        let mut head = [0; 16];
        self.0.read_exact(&mut head)?;
        let [magic, error] = [0, 4].map(|at| u32::from_be_bytes(std::array::from_fn(|i| head[at + i])));
        if magic != SIMPLE_REPLY_MAGIC || error != 0 {
            return Err(io::Error::other(format!("the read fails with error {error}")));
        }
        self.0.read_exact(buf)
    }
}
