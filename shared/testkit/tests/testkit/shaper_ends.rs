//! The shaping proxy passes on the end of a connection, and leaves no socket waiting.

use headstart_testkit::shaper::{ShapedLink, Shaper};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

fn milliseconds(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A client of the proxy and the server's end of its connection. A call that waits on them for too long gets an error.
fn connect(shaper: &Shaper, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(shaper.addr()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        end.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    (client, server)
}

#[test]
fn ends_and_resets_pass() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let link = ShapedLink::new(None, milliseconds(1));
    let shaper = Shaper::start(&link, listener.local_addr().unwrap()).unwrap();
    // The client ends its half; the server answers anyway.
    let (mut client, mut server) = connect(&shaper, &listener);
    client.write_all(b"question").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    server.read_to_string(&mut text).unwrap();
    server.write_all(b"answer").unwrap();
    drop(server);
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "questionanswer");

    // The server breaks off: a byte that was not read makes its end a reset.
    let (mut client, server) = connect(&shaper, &listener);
    client.write_all(b"unread").unwrap();
    while rustix::io::ioctl_fionread(&server).unwrap() == 0 {
        thread::yield_now();
    }
    drop(server);
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    // The client goes away in the middle of an answer: the server's write fails, soon.
    let (client, mut server) = connect(&shaper, &listener);
    drop(client);
    let error = loop {
        if let Err(error) = server.write_all(&[0; 65536]) {
            break error;
        }
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");

    // Without a server, the client gets an error.
    drop(listener);
    let mut client = TcpStream::connect(shaper.addr()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_ne!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// The same holds if the proxy goes at the moment at which a connection is made.
#[test]
fn a_proxy_that_goes_leaves_nobody_waiting() {
    let link = ShapedLink::new(None, milliseconds(1));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for _ in 0..300 {
        let shaper = Shaper::start(&link, listener.local_addr().unwrap()).unwrap();
        let (mut client, mut server) = connect(&shaper, &listener);
        drop(shaper);
        for end in [&mut client, &mut server] {
            let read = end.read(&mut [0]);
            let broken = match &read {
                Ok(len) => *len == 0,
                Err(error) => error.kind() == ErrorKind::ConnectionReset,
            };
            assert!(broken, "{read:?}");
        }
    }
}
