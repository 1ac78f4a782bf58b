//! Entries are counted as soon as many may have come, not only at intervals, and once they do not fit into a message.

use super::transport::COUNT_AFTER;
use super::*;
use crate::gossip::loopback::tests::read;
use crate::tests::gossip::naming;
use chitchat::ChitchatEnvelope;
use chitchat::transport::Transport;
use tokio::net::UdpSocket;

fn own(address: SocketAddr) -> RunId {
    RunId { name: "a".to_owned(), generation: 1, address }
}

#[test]
fn a_notice_comes_when_enough_bytes_for_many_entries_have_arrived() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let address = socket.local_addr().unwrap();
        let seal = Arc::new(Seal::new(Some([7; 32])).unwrap());
        let noticed = Arc::<Noticed>::default();
        let sealed = Sealed {
            socket,
            seal: Arc::clone(&seal),
            strays: Arc::default(),
            noticed: Arc::clone(&noticed),
            own: own(address),
        };
        let mut receiver = sealed.open(address).await.unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let message = naming(0..500);
        let (mut came, mut told) = (0, Vec::new());
        for _ in 0..3 * COUNT_AFTER / message.len() {
            for datagram in seal.seal(&message).unwrap() {
                other.send_to(&datagram, address).await.unwrap();
            }
            tokio::time::timeout(Duration::from_secs(20), receiver.recv()).await.unwrap().unwrap();
            came += message.len();
            if tokio::time::timeout(Duration::ZERO, noticed.some()).await.is_ok() {
                told.push(came);
            }
        }
        let each = COUNT_AFTER.div_ceil(message.len()) * message.len();
        assert_eq!(told[..2], [each, 2 * each], "of {came}");
    });
}

#[test]
fn a_host_that_knows_of_more_than_it_can_tell_starts_again() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let address = socket.local_addr().unwrap();
        let seal = Arc::new(Seal::new(Some([7; 32])).unwrap());
        let noticed = Arc::<Noticed>::default();
        let sealed =
            Sealed { socket, seal, strays: Arc::default(), noticed: Arc::clone(&noticed), own: own(address) };
        let mut sender = sealed.open(address).await.unwrap();
        let asking = async |hosts: u32| {
            let message = read(&naming(0..hosts)).await;
            ChitchatEnvelope { version: ProtocolVersion::V1, message }
        };
        sender.send(address, asking(2000).await).await.unwrap();
        assert!(!noticed.is_too_long());
        // The number of hosts is below the limit.
        sender.send(address, asking(3500).await).await.unwrap_err();
        assert!(noticed.is_too_long());
        let gossiper = run::tests::gossiper("a", Vec::new()).await;
        let running = gossiper.start(Run::new(), &[]).await.unwrap();
        let looking = tokio::time::timeout(Duration::from_secs(20), broken(&running.handle, &noticed));
        let found = looking.await.unwrap();
        assert!(matches!(found, Broken::TooMuch { hosts: 1, .. }), "all that it knows of is itself: {found}");
    });
}
