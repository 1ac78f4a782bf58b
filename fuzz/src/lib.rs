//! Every parser of headstart on hostile input.
