// Containerd's own suite of tests for snapshotters, on the snapshotter that a program serves on a socket.
//
// HEADSTART_SNAPSHOTTER is that program with its arguments, separated by newlines. The directory and the socket are
// given to it as SNAPSHOTTER_ROOT and SNAPSHOTTER_SOCKET. HEADSTART_MODE is the place of the files:
//
//	directories  overlayfs over directories
//	overlayfs    overlayfs over a disk: the lowest layer is one
//	dir          every layer is a disk's, mounted or handed out as a device
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
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/core/snapshots/testsuite"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// onDisk makes the lowest layers disks.
type onDisk struct {
	snapshots.Snapshotter
}

func (s onDisk) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	if parent == "" {
		opts = append(opts, snapshots.WithLabels(map[string]string{"containerd.io/snapshot/overlaybd.writable": "dir"}))
	}
	return s.Snapshotter.Prepare(ctx, key, parent, opts...)
}

// clear removes all snapshots: those of disks have a process each, which outlives the snapshotter.
func clear(ctx context.Context, snapshotter snapshots.Snapshotter) error {
	for {
		var keys []string
		err := snapshotter.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
			keys = append(keys, info.Name)
			return nil
		})
		if err != nil || len(keys) == 0 {
			return err
		}
		removed := 0
		for _, key := range keys {
			if snapshotter.Remove(ctx, key) == nil {
				removed++
			}
		}
		if removed == 0 {
			return fmt.Errorf("none of %d snapshots can be removed", len(keys))
		}
	}
}

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
	snapshotter := proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(connection), "headstart")
	clearAndEnd := func() error {
		if err := clear(ctx, snapshotter); err != nil {
			return fmt.Errorf("%w; %v", err, end())
		}
		return end()
	}
	if mode() == "overlayfs" {
		return onDisk{snapshotter}, clearAndEnd, nil
	}
	return snapshotter, clearAndEnd, nil
}

func mode() string {
	return os.Getenv("HEADSTART_MODE")
}

func TestSnapshotter(t *testing.T) {
	// By this name the suite knows that renaming a directory of a lower layer takes an option of overlayfs.
	name := "overlayfs"
	if mode() == "dir" {
		name = "headstart"
	}
	testsuite.SnapshotterSuite(t, name, start)
}
