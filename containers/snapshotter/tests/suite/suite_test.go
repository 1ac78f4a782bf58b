// Containerd's own suite of tests for snapshotters, on the snapshotter that a program serves on a socket.
//
// HEADSTART_SNAPSHOTTER is that program with its arguments, separated by newlines. The directory and the socket are
// given to it as SNAPSHOTTER_ROOT and SNAPSHOTTER_SOCKET.
package suite

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/core/snapshots/testsuite"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// start serves the snapshots of a directory, and returns when calls are answered.
func start(ctx context.Context, root string) (snapshots.Snapshotter, func() error, error) {
	socket := filepath.Join(filepath.Dir(root), "socket")
	words := strings.Split(os.Getenv("HEADSTART_SNAPSHOTTER"), "\n")
	server := exec.Command(words[0], words[1:]...)
	server.Env = append(os.Environ(), "SNAPSHOTTER_ROOT="+root, "SNAPSHOTTER_SOCKET="+socket)
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		return nil, nil, err
	}
	end := func() error {
		_ = server.Process.Kill()
		_ = server.Wait()
		return nil
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		if time.Since(began) > 20*time.Second {
			return nil, nil, fmt.Errorf("there is no %s: %v", socket, end())
		}
	}
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(connection), "headstart"), end, nil
}

func TestSnapshotter(t *testing.T) {
	// By this name the suite knows that renaming a directory of a lower layer takes an option of overlayfs.
	testsuite.SnapshotterSuite(t, "overlayfs", start)
}
