module nerdctl

go 1.25.0

require github.com/containerd/nerdctl/v2 v2.0.5
