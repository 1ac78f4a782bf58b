//! Where requests wait: the lane that all servers share.

pub(super) use crate::slow_lane::SlowLane;
