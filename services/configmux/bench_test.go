package configmux

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
)

// BenchmarkFromRenameToSubscriber is the time from a manifest's rename into place until a subscriber of the socket has
// received the change, in a directory with a hundred other manifests.
func BenchmarkFromRenameToSubscriber(b *testing.B) {
	p := newProcess(b)
	for i := range 100 {
		p.write(fmt.Sprintf("other-%d.yaml", i), manifest(fmt.Sprintf("other-%d", i), "", "i"))
	}
	p.run()
	p.ready()
	out, err := p.client.WatchPodUpdates(b.Context(), &configv1.WatchPodUpdatesRequest{}, grpc.WaitForReady(true))
	must(b, err)
	receive := func(image string) {
		for {
			m, err := out.Recv()
			must(b, err)
			if m.GetPod() != nil && decode(b, m.GetPod()).Spec.Containers[0].Image == image {
				return
			}
		}
	}
	hidden := filepath.Join(p.dir, ".next")
	i := 0
	for b.Loop() {
		b.StopTimer()
		i++
		image := fmt.Sprintf("i:%d", i)
		must(b, os.WriteFile(hidden, []byte(manifest("a", "a", image)), 0o600))
		b.StartTimer()
		must(b, os.Rename(hidden, filepath.Join(p.dir, "a.yaml")))
		receive(image)
	}
}
