package bundle

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// parallelRemovals is the number of pods that are stopped at once.
	parallelRemovals = 8
	// namespace is containerd's namespace for what CRI manages.
	namespace = "k8s.io"
)

// dial connects to the runtime's socket; the connection is made on the first call.
func (b *Bundle) dial() (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(b.cfg.Layout.RuntimeEndpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dialing %s: %w", b.cfg.Layout.RuntimeEndpoint(), err)
	}
	return conn, nil
}

// waitServing waits until the runtime and its network report that they are ready. It fails when containerd does not run
// any more.
func (b *Bundle) waitServing(ctx context.Context, runs func() bool) (err error) {
	conn, err := b.dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		reason := notReady(ctx, client)
		if reason == nil {
			return nil
		}
		if !runs() {
			return errors.Join(errors.New("containerd has ended"), reason)
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), reason)
		case <-ticker.C:
			// Without this, a failed connection attempt is repeated only after a second.
			conn.ResetConnectBackoff()
		}
	}
}

// notReady returns why the runtime cannot run a pod; nil if it can.
func notReady(ctx context.Context, client runtimeapi.RuntimeServiceClient) error {
	status, err := client.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return err
	}
	for _, condition := range status.GetStatus().GetConditions() {
		if !condition.GetStatus() &&
			(condition.GetType() == runtimeapi.RuntimeReady || condition.GetType() == runtimeapi.NetworkReady) {
			return fmt.Errorf("%s is false: %s: %s", condition.GetType(), condition.GetReason(), condition.GetMessage())
		}
	}
	return nil
}

// ImportImages imports the images of the build into the runtime, which then replace others of their names.
func (b *Bundle) ImportImages(ctx context.Context) error {
	if err := b.ImportArchive(ctx, b.archive("pause"), PauseImage); err != nil {
		return err
	}
	return b.ImportArchive(ctx, b.archive("hello"), HelloImage)
}

// pinned is the label that exempts an image from garbage collection. No registry has these images, so a removed image
// could not be pulled again.
const pinned = "io.cri-containerd.pinned=pinned"

// ImportArchive imports one image archive, pinned, and waits until the CRI lists the image by its name. If the runtime
// has the same image already, it imports nothing.
func (b *Bundle) ImportArchive(ctx context.Context, archive, image string) (err error) {
	if _, err := os.Stat(archive); err != nil {
		return fmt.Errorf("importing %s: %w: run make build", image, err)
	}
	conn, err := b.dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	client := runtimeapi.NewImageServiceClient(conn)
	if has(ctx, client, archive, image) {
		return nil
	}
	cmd := exec.CommandContext(ctx, b.binary("ctr"),
		"--address", b.cfg.Layout.RuntimeSocket(), "--namespace", namespace, "images", "import", "--label", pinned, archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("importing %s from %s: %w: %s", image, archive, err, out)
	}
	return waitImage(ctx, client, image)
}

// has reports whether the runtime has the image of an archive by its name, pinned. If that cannot be found out it is
// false, and the import reports why.
func has(ctx context.Context, client runtimeapi.ImageServiceClient, archive, image string) bool {
	id, err := imageID(archive, image)
	if err != nil {
		return false
	}
	status, err := client.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	return err == nil && status.GetImage().GetId() == id && status.GetImage().GetPinned()
}

// imageID returns the ID of the image with a name in an archive of the format of "docker save": the digest of its
// configuration, which is also the ID in the CRI.
func imageID(archive, image string) (id string, err error) {
	file, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	files := tar.NewReader(file)
	for {
		header, err := files.Next()
		if err != nil {
			return "", fmt.Errorf("%s: no %s: %w", archive, manifestFile, err)
		}
		if header.Name != manifestFile {
			continue
		}
		var images []struct {
			Config   string
			RepoTags []string
		}
		if err := json.NewDecoder(files).Decode(&images); err != nil {
			return "", fmt.Errorf("%s: %s: %w", archive, manifestFile, err)
		}
		for _, one := range images {
			if slices.Contains(one.RepoTags, image) {
				return one.Config, nil
			}
		}
		return "", fmt.Errorf("%s: no image %s", archive, image)
	}
}

// manifestFile names the images of an archive.
const manifestFile = "manifest.json"

// waitImage waits until the CRI's image store, which follows containerd's by events, has the image.
func waitImage(ctx context.Context, client runtimeapi.ImageServiceClient, image string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		status, err := client.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
		if err != nil {
			return fmt.Errorf("asking for the image %s: %w", image, err)
		}
		if status.GetImage() != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the image %s: %w", image, ctx.Err())
		case <-ticker.C:
		}
	}
}

// RemovePods stops and removes every pod of the runtime, with a grace period that is truncated to seconds. The runtime
// must run. A failed removal does not prevent the others: all others are removed when the error is returned.
func (b *Bundle) RemovePods(ctx context.Context, grace time.Duration) (err error) {
	conn, err := b.dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	pods, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("listing the pods: %w", err)
	}
	// A failure does not cancel the other removals: an interrupted removal leaves a part of the pod's network behind.
	var group errgroup.Group
	group.SetLimit(parallelRemovals)
	failures := make([]error, len(pods.GetItems()))
	for i, pod := range pods.GetItems() {
		group.Go(func() error {
			if err := removePod(ctx, client, pod.GetId(), grace); err != nil {
				failures[i] = fmt.Errorf(
					"removing the pod %s/%s: %w",
					pod.GetMetadata().GetNamespace(),
					pod.GetMetadata().GetName(),
					err,
				)
			}
			return nil
		})
	}
	return errors.Join(append(failures, group.Wait())...)
}

func removePod(ctx context.Context, client runtimeapi.RuntimeServiceClient, id string, grace time.Duration) error {
	containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			PodSandboxId: id,
			State:        &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		},
	})
	if err != nil {
		return err
	}
	var group errgroup.Group
	for _, c := range containers.GetContainers() {
		group.Go(func() error {
			_, err := client.StopContainer(ctx, &runtimeapi.StopContainerRequest{
				ContainerId: c.GetId(), Timeout: int64(grace / time.Second),
			})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if _, err := client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return err
	}
	_, err = client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}
