//! One client's connection: its requests one after the other, each with its fault.

use super::http::{Body, Head, write_piece};
use super::{Fault, LoggedRequest, ProxiedRequest, Shared, abort};
use headstart_block::to_usize;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, BufReader, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The number of parts a second in which a slow answer comes.
const SLOW_PIECES: u64 = 50;

type Reader<'a> = BufReader<&'a TcpStream>;

/// The next step of a connection: another request, or its end.
#[derive(PartialEq)]
enum Then {
    Next,
    Close,
}

pub(super) fn serve(shared: &Shared, client: &TcpStream, number: u64, era: u64) {
    let _ = client.set_nodelay(true);
    let mut reader = BufReader::new(client);
    let mut server = None;
    while let Ok(Some(head)) = Head::read(&mut reader) {
        if shared.pass(era).is_err() {
            return;
        }
        let asked = asked(&head);
        let fault = {
            let mut state = shared.lock();
            state.rules.iter_mut().find_map(|rule| rule.meets(&asked))
        };
        let entry = Entry::start(shared, asked, number, fault.as_ref());
        let mut exchange = Exchange { shared, client, era, entry, fault, sent: 0 };
        let then = exchange.run(head, &mut reader, &mut server);
        let broken = then.is_err();
        exchange.entry.finish(broken);
        match then {
            Ok(Then::Next) => {}
            // The last holder of the socket closes it: in good order, unless `abort` was called.
            Ok(Then::Close) | Err(_) => return,
        }
    }
}

fn asked(head: &Head) -> ProxiedRequest {
    let header = |name| head.header(name).map(str::to_owned);
    ProxiedRequest {
        method: head.word(0).to_owned(),
        path: head.word(1).to_owned(),
        range: head.header("Range").and_then(parse_range),
        range_header: header("Range"),
        host: header("Host"),
        authorization: header("Authorization"),
        user_agent: header("User-Agent"),
    }
}

fn parse_range(header: &str) -> Option<Range<u64>> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    let first = first.trim().parse().ok()?;
    let end = match last.trim() {
        "" => u64::MAX,
        last => last.parse::<u64>().ok()?.checked_add(1)?,
    };
    Some(first..end)
}

/// A request's place in the log.
struct Entry<'a> {
    shared: &'a Shared,
    index: usize,
    era: u64,
}

impl<'a> Entry<'a> {
    fn start(shared: &'a Shared, asked: ProxiedRequest, connection: u64, fault: Option<&Fault>) -> Self {
        let mut state = shared.lock();
        let request = LoggedRequest {
            asked,
            connection,
            started: shared.since.elapsed(),
            finished: None,
            status: 0,
            sent: 0,
            fault: fault.map(|fault| format!("{fault:?}")),
            broken: false,
        };
        state.log.push(request);
        Self { shared, index: state.log.len() - 1, era: state.log_era }
    }

    fn change(&self, change: impl FnOnce(&mut LoggedRequest)) {
        let mut state = self.shared.lock();
        if state.log_era == self.era
            && let Some(request) = state.log.get_mut(self.index)
        {
            change(request);
        }
    }

    fn finish(&self, broken: bool) {
        let now = self.shared.since.elapsed();
        self.change(|request| {
            request.finished.get_or_insert(now);
            request.broken = broken;
        });
    }
}

/// One request and its answer.
struct Exchange<'a> {
    shared: &'a Shared,
    client: &'a TcpStream,
    /// The time at which the connection was made, as the number of refusals until then.
    era: u64,
    entry: Entry<'a>,
    fault: Option<Fault>,
    /// Bytes of the answer's body so far.
    sent: u64,
}

/// The connection to the server, kept for the next request.
struct Server {
    socket: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Server {
    fn connect(shared: &Shared) -> io::Result<Self> {
        let socket = TcpStream::connect(shared.to)?;
        socket.set_nodelay(true)?;
        let reader = BufReader::new(socket.try_clone()?);
        Ok(Self { socket, reader })
    }
}

impl Exchange<'_> {
    fn run(
        &mut self,
        mut head: Head,
        reader: &mut Reader<'_>,
        server: &mut Option<Server>,
    ) -> io::Result<Then> {
        let (method, closes) = (head.word(0).to_owned(), head.closes());
        let mut body = head.request_body()?;
        if head.header("Expect").is_some() {
            head.remove("Expect");
            self.client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        match self.fault.clone() {
            Some(Fault::Status { code, headers }) => {
                while !body.next(reader, u64::MAX)?.is_empty() {}
                self.entry.change(|request| request.status = code);
                self.entry.finish(false);
                Head::answer(code, &headers, 0).write(self.client)?;
                return Ok(if closes { Then::Close } else { Then::Next });
            }
            Some(Fault::Reset { after: None }) => return Err(self.reset()),
            Some(Fault::Hang { after: None }) => return Err(self.hang()),
            Some(Fault::Late(time)) => self.shared.pause(time),
            Some(Fault::IgnoreRange) => head.remove("Range"),
            Some(Fault::WrongRange { shift, .. }) => {
                if let Some(range) = head.header("Range").and_then(parse_range) {
                    let last = range.end.saturating_add(shift).saturating_sub(1);
                    head.set("Range", &format!("bytes={}-{last}", range.start.saturating_add(shift)));
                }
            }
            _ => {}
        }
        let Ok((answer, mut from)) = self.ask(&head, &mut body, reader, server.take()) else {
            // As a web server does in front of one that is gone.
            self.entry.change(|request| request.status = 502);
            self.entry.finish(false);
            Head::answer(502, &[], 0).write(self.client)?;
            return Ok(Then::Close);
        };
        let keep = self.pass_on(answer, &method, &mut from)?;
        if keep {
            *server = Some(from);
        }
        Ok(if closes || !keep { Then::Close } else { Then::Next })
    }

    /// Sends the request to the server and reads the head of its answer.
    fn ask(
        &self,
        head: &Head,
        body: &mut Body,
        reader: &mut Reader<'_>,
        kept: Option<Server>,
    ) -> io::Result<(Head, Server)> {
        // A connection that was kept may have ended meanwhile: then the request is sent once more, if that can be done.
        let again = kept.is_some() && matches!(body, Body::Known { left: 0 });
        let mut server = kept.map_or_else(|| Server::connect(self.shared), Ok)?;
        match ask_once(head, body, reader, &mut server) {
            Ok(answer) => Ok((answer, server)),
            Err(_) if again => {
                let mut server = Server::connect(self.shared)?;
                let answer = ask_once(head, body, reader, &mut server)?;
                Ok((answer, server))
            }
            Err(error) => Err(error),
        }
    }

    /// Passes the answer on. `true` if the connection to the server can be used again, and so the client's.
    fn pass_on(&mut self, mut answer: Head, method: &str, server: &mut Server) -> io::Result<bool> {
        let mut body = answer.answer_body(method)?;
        let keep = !answer.closes() && !matches!(body, Body::ToTheEnd);
        let mut most = u64::MAX;
        match self.fault {
            Some(Fault::Short { len }) if method != "HEAD" => {
                most = len;
                if let Body::Known { left } = body {
                    answer.set("Content-Length", &left.min(len).to_string());
                }
            }
            Some(Fault::WrongRange { shift, honest: false }) => {
                if let Some(claimed) =
                    answer.header("Content-Range").and_then(|value| shifted_back(value, shift))
                {
                    answer.set("Content-Range", &claimed);
                }
            }
            _ => {}
        }
        let chunked = answer.is_chunked() && matches!(body, Body::Chunked { .. });
        self.entry.change(|request| request.status = answer.status());
        let ends_here = matches!(body, Body::Known { left: 0 }) || most == 0;
        if ends_here {
            self.entry.finish(false);
        }
        answer.write(self.client)?;
        let since = Instant::now();
        loop {
            let (piece, fatal) = self.limits(&since);
            if let Some(fatal) = fatal {
                return Err(fatal);
            }
            let mut bytes = body.next(&mut server.reader, piece)?;
            if bytes.is_empty() {
                break;
            }
            // Bytes beyond a short answer are read anyway, so that the connection stays usable.
            bytes.truncate(to_usize(most - self.sent).min(bytes.len()));
            self.corrupt(&mut bytes);
            self.send(&bytes, chunked, matches!(body, Body::Known { left: 0 }))?;
        }
        self.entry.finish(false);
        if chunked {
            write_piece(self.client, &[], true)?;
        }
        Ok(keep)
    }

    fn send(&mut self, bytes: &[u8], chunked: bool, last: bool) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.shared.pass(self.era)?;
        self.sent += bytes.len() as u64;
        let sent = self.sent;
        self.entry.change(|request| request.sent = sent);
        if last {
            self.entry.finish(false);
        }
        write_piece(self.client, bytes, chunked)
    }

    /// The number of bytes that may pass next, and the error if the answer ends here.
    fn limits(&self, since: &Instant) -> (u64, Option<io::Error>) {
        let after = match self.fault {
            Some(Fault::Slow(rate)) => {
                let rate = rate.max(1);
                let due = Duration::from_secs_f64(self.sent as f64 / rate as f64);
                self.shared.pause(due.saturating_sub(since.elapsed()));
                return (rate.div_ceil(SLOW_PIECES), None);
            }
            Some(
                Fault::Reset { after: Some(after) }
                | Fault::Hang { after: Some(after) }
                | Fault::CutOff { after },
            ) => after,
            _ => return (u64::MAX, None),
        };
        if self.sent < after {
            return (after - self.sent, None);
        }
        let error = match self.fault {
            Some(Fault::Reset { .. }) => self.reset(),
            Some(Fault::Hang { .. }) => self.hang(),
            _ => io::ErrorKind::UnexpectedEof.into(),
        };
        (0, Some(error))
    }

    fn corrupt(&self, bytes: &mut [u8]) {
        if let Some(Fault::Corrupt { at }) = self.fault
            && let Some(index) = at.checked_sub(self.sent).and_then(|index| usize::try_from(index).ok())
            && let Some(byte) = bytes.get_mut(index)
        {
            *byte = !*byte;
        }
    }

    fn reset(&self) -> io::Error {
        abort(self.client);
        io::ErrorKind::ConnectionReset.into()
    }

    /// Waits as long as the client does.
    fn hang(&self) -> io::Error {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let second = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        while !self.shared.lock().ended {
            let mut fds = [PollFd::new(self.client, PollFlags::RDHUP)];
            let polled = poll(&mut fds, Some(&second));
            if polled.is_err() || fds[0].revents().intersects(gone) {
                break;
            }
        }
        io::ErrorKind::TimedOut.into()
    }
}

fn ask_once(head: &Head, body: &mut Body, reader: &mut Reader<'_>, server: &mut Server) -> io::Result<Head> {
    let chunked = matches!(body, Body::Chunked { .. });
    head.write(&server.socket)?;
    loop {
        let bytes = body.next(reader, u64::MAX)?;
        if !bytes.is_empty() || chunked {
            write_piece(&server.socket, &bytes, chunked)?;
        }
        if bytes.is_empty() {
            break;
        }
    }
    loop {
        let answer = Head::read(&mut server.reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if !(100..200).contains(&answer.status()) {
            return Ok(answer);
        }
    }
}

/// A Content-Range moved back: `bytes 15-19/100` is `bytes 5-9/100` after a shift by 10.
fn shifted_back(content_range: &str, shift: u64) -> Option<String> {
    let (range, len) = content_range.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let back = |number: &str| Some(number.parse::<u64>().ok()?.saturating_sub(shift));
    Some(format!("bytes {}-{}/{len}", back(first)?, back(last)?))
}
