//! Entries are counted as soon as many may have come, and not only now and then.

use super::*;
use crate::peers::tests::gossip::naming;

#[test]
fn it_is_told_when_enough_has_come_for_many_entries() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let address = socket.local_addr().unwrap();
        let seal = Arc::new(Seal::new(Some([7; 32])).unwrap());
        let much = Arc::<Notify>::default();
        let sealed =
            Sealed { socket, seal: Arc::clone(&seal), strays: Arc::default(), much: Arc::clone(&much) };
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
            if tokio::time::timeout(Duration::ZERO, much.notified()).await.is_ok() {
                told.push(came);
            }
        }
        let each = COUNT_AFTER.div_ceil(message.len()) * message.len();
        assert_eq!(told[..2], [each, 2 * each], "of {came}");
    });
}
