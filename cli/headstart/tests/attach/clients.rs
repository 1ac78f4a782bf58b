//! Clients that are connected when their disk is to be detached, or when its process dies.

use crate::attached::{Attached, TIMEOUT, image_options};
use crate::images::noisy;
use crate::scene::Scene;
use crate::tools::installed;
use headstart_testkit::wait::wait_until;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The time after which a person presses Ctrl-C again.
const SECOND_PRESS: Duration = Duration::from_millis(150);

/// A client that stays connected, and reads when it is told to.
struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn connect(uri: &str) -> Self {
        let mut command = Command::new("qemu-io");
        command.args(["-r", "-f", "raw", uri]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut client = Self { child, input, output: BufReader::new(output) };
        client.reads();
        client
    }

    #[track_caller]
    fn reads(&mut self) {
        self.input.write_all(b"read 0 512\n").unwrap();
        let mut line = String::new();
        while !line.contains("read 512/512 bytes") {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the client has ended");
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_first_interrupt_takes_no_disk_away_that_is_used() {
    let scene = noisy(1);
    if !installed(&["qemu-io"]) {
        return;
    }
    let mut attached = Attached::start(&scene, "file://~/store:v1 --nbd unix:~/d.sock");
    let mut client = Client::connect(&attached.uri());
    attached.process().signal(Signal::INT);
    let told =
        attached.process().line("that a client is connected", TIMEOUT, |line| line.contains("connected"));
    assert_eq!(told, "headstart: 1 client is connected; Ctrl-C again detaches nevertheless");
    client.reads();
    std::thread::sleep(SECOND_PRESS);
    attached.detach_by(Signal::INT);
    // Without clients the first signal is enough.
    drop(client);
    let mut attached = Attached::start(&scene, "file://~/store:v1 --nbd unix:~/d.sock");
    drop(Client::connect(&attached.uri()));
    // The server may not have noticed yet that the client is gone.
    wait_until("it has ended", TIMEOUT, || {
        let is_running = attached.process().is_running();
        if is_running {
            attached.process().signal(Signal::INT);
        }
        !is_running
    });
    assert!(!attached.output().contains("panicked"), "{}", attached.output());
}

/// A client that has finished its handshake.
fn shake_hands(scene: &Scene) -> UnixStream {
    let mut socket = UnixStream::connect(scene.path("d.sock")).unwrap();
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting).unwrap();
    // The flags of a client that wants no zeros, and the option EXPORT_NAME without a name.
    let option = [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &1_u32.to_be_bytes(), &0_u32.to_be_bytes()].concat();
    socket.write_all(&option).unwrap();
    socket.read_exact(&mut [0; 10]).unwrap();
    socket
}

/// A client that the server has answered a read of.
fn connect_at_once(scene: &Scene) -> UnixStream {
    let mut socket = shake_hands(scene);
    let (magic, read, number) = (0x2560_9513_u32.to_be_bytes(), [0; 4], [7; 8]);
    let request = [&magic[..], &read, &number, &0_u64.to_be_bytes(), &512_u32.to_be_bytes()].concat();
    socket.write_all(&request).unwrap();
    let mut reply = [0; 16 + 512];
    socket.read_exact(&mut reply).unwrap();
    assert_eq!((&reply[4..8], &reply[8..16]), (&[0; 4][..], &number[..]));
    socket
}

/// The server sees at each of its looks that one client is connected: it is not always the same.
#[test]
fn an_interrupt_after_a_question_about_one_client_does_not_detach_from_under_the_next() {
    let scene = noisy(1);
    let mut attached = Attached::start(&scene, "file://~/store:v1 --nbd unix:~/d.sock");
    let mut client = connect_at_once(&scene);
    for questions in 1..=6 {
        attached.process().signal(Signal::INT);
        wait_until("the user is asked", TIMEOUT, || {
            assert!(attached.process().is_running(), "{}", attached.output());
            attached.output().matches("Ctrl-C again detaches").count() == questions
        });
        std::thread::sleep(SECOND_PRESS);
        drop(client);
        client = connect_at_once(&scene);
    }
    attached.detach();
}

/// Clients decide how often they misbehave, but not how much of the log they fill.
#[test]
fn a_thousand_clients_that_misbehave_leave_a_few_lines() {
    let scene = noisy(1);
    let mut attached = Attached::start(&scene, "file://~/store:v1 --nbd unix:~/d.sock");
    let misbehave = || {
        let mut socket = shake_hands(&scene);
        // This is no request.
        socket.write_all(&[b'x'; 28]).unwrap();
        // The client is disconnected.
        let _ = socket.read_to_end(&mut Vec::new());
    };
    for _ in 0..1000 {
        misbehave();
    }
    let warning = attached.warning();
    assert!(warning.contains("an NBD client is disconnected"), "{warning}");
    // There is one line a minute.
    let said = attached.output();
    let lines = said.lines().filter(|line| line.starts_with("headstart: warning: ")).count();
    assert!((1..=5).contains(&lines), "{lines}: {said}");
    attached.detach();
}

#[test]
fn a_termination_detaches_at_once_and_says_who_was_connected() {
    let scene = noisy(1);
    if !installed(&["qemu-io"]) {
        return;
    }
    let mut attached = Attached::start(&scene, "file://~/store:v1 --nbd unix:~/d.sock");
    let _client = Client::connect(&attached.uri());
    attached.process().signal(Signal::TERM);
    let told =
        attached.process().line("that a client is connected", TIMEOUT, |line| line.contains("connected"));
    assert_eq!(told, "headstart: asked by a signal to detach at once, though 1 client is connected");
    assert_eq!(attached.process().end(TIMEOUT).code(), Some(0), "{}", attached.output());
}

/// With the printed line, a client goes on after its disk's process was killed and the image attached again.
#[test]
fn a_printed_line_outlives_the_process_of_its_disk() {
    let scene = noisy(16);
    if !installed(&["qemu-img"]) {
        return;
    }
    let words = "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock";
    let mut attached = Attached::start(&scene, words);
    let options = image_options(&attached.ready["ways"][0]["qemu"]);
    let mut bench = bench(&scene, &options);
    wait_for_writes(&scene, &mut bench);
    attached.process().kill();
    let again = Attached::start(&scene, words);
    let output = bench.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    again.detach();
}

/// Writes for some seconds.
fn bench(scene: &Scene, options: &str) -> Child {
    let mut command = Command::new("qemu-img");
    command.args(["bench", "--image-opts", "-w", "-c", "40000", "-d", "4", "-s", "4096", options]);
    command.current_dir(scene.path("")).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until some data has been written, but not all.
#[track_caller]
fn wait_for_writes(scene: &Scene, bench: &mut Child) {
    wait_until("1 MiB is written", TIMEOUT, || {
        assert!(bench.try_wait().unwrap().is_none(), "the client has ended");
        std::fs::metadata(scene.path("vm/data")).is_ok_and(|meta| meta.len() >= 1 << 20)
    });
    assert!(bench.try_wait().unwrap().is_none(), "all was written before the disk was killed");
}

#[test]
fn a_port_for_everybody_is_warned_of() {
    let scene = noisy(1);
    let mut attached = Attached::start(&scene, "file://~/store:v1 --nbd 0.0.0.0:0 --writable ~/vm");
    let said = attached.warning();
    assert!(
        said.contains("0.0.0.0:0") && said.contains("read and write") && said.contains("--tls-client-ca"),
        "{said}"
    );
    attached.detach();
    let attached = Attached::start(&scene, "file://~/store:v1 --nbd 127.0.0.1:0 --nbd localhost:0");
    assert!(!attached.output().contains("every client"), "{}", attached.output());
    attached.detach();
}
