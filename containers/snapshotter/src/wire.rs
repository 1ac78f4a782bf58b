//! The common part of the services that containerd calls: how messages are read and written.

use prost::Message;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;

/// Bytes of a message at most, as containerd allows.
const MESSAGE_MOST: usize = 16 << 20;

/// The server's half of one call.
pub(crate) fn grpc<Q, A>() -> Grpc<ProstCodec<A, Q>>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    Grpc::new(ProstCodec::default())
        .max_decoding_message_size(MESSAGE_MOST)
        .max_encoding_message_size(MESSAGE_MOST)
}
