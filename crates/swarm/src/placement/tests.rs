//! Placement against its plain definition.
