module buildkit

go 1.25.0

require github.com/moby/buildkit v0.25.1
