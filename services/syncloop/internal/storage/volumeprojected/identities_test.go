package volumeprojected_test

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/mount-utils"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumeprojected"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// issued is an API server that returns roots and certificates for every pod.
type issued struct{}

type roots struct{}

func (roots) Get(_ context.Context, pod *v1.Pod, p *v1.ClusterTrustBundleProjection) ([]byte, error) {
	return []byte("the roots " + *p.Name + " for " + pod.Name), nil
}

func (issued) Get(
	_ context.Context, pod *v1.Pod, volume string, source int, _ *v1.PodCertificateProjection,
) (key, chain []byte, err error) {
	return []byte(hidden), []byte("the chain for " + pod.Name + " in " + volume + "[" + string(rune('0'+source)) + "]"), nil
}

func identity() v1.VolumeSource {
	return projected(
		v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: ptr("shop"), Path: "ca.crt"}},
		v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{SignerName: "shop.example/signer", CredentialBundlePath: "bundle", KeyPath: "key", CertificateChainPath: "chain"}},
	)
}

// TestRootsAndCertificatesAreInMemoryAlone also checks that each is requested by its place in the volume.
func TestRootsAndCertificatesAreInMemoryAlone(t *testing.T) {
	r := newRig(t)
	r.plugins = volumeprojected.Plugins(volumeprojected.Config{
		Mounter: r.mounter, Memory: func(context.Context) int64 { return 0 }, Objects: r.objects, TrustBundles: roots{},
		Certificates: issued{},
		Clock:        clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0)),
	})
	v := r.volume(identity())
	v.mustSetUp()
	v.has("ca.crt", "the roots shop for web", "bundle", hidden+"the chain for web in v[1]", "key", hidden, "chain", "the chain for web in v[1]")
	if kinds, options := v.mounted(); len(kinds) != 1 || kinds[0] != "tmpfs" || !strings.Contains(options, "noswap") {
		t.Errorf("%v is mounted with %s, want exactly one, kinds[0] %q and with %q", kinds, options, "tmpfs", "noswap")
	}
}

// TestWithoutAnAPIServerARemedyIsReported checks the error of each source that needs an API server.
func TestWithoutAnAPIServerARemedyIsReported(t *testing.T) {
	r := newRig(t)
	v := r.volume(identity())
	err := v.setUp()
	for _, want := range []string{
		"projected.sources[0].clusterTrustBundle: this node has no API server that could provide trust bundles; leave the source out, or put the roots in a ConfigMap",
		"projected.sources[1].podCertificate: this node has no API server that could issue certificates; leave the source out, or put a certificate in a Secret",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// counting counts the reads of the mount table.
type counting struct {
	volumes.Mounter
	lists int
}

func (c *counting) List() ([]mount.MountPoint, error) {
	c.lists++
	return c.Mounter.List()
}

// TestAVolumeInPlaceIsBroughtUpToDateWithoutTheMountTable checks that an update does not read the mount table, which is
// long on a node with many pods.
func TestAVolumeInPlaceIsBroughtUpToDateWithoutTheMountTable(t *testing.T) {
	r := newRig(t)
	counted := &counting{Mounter: r.mounter}
	r.mounter = counted
	r.restart()
	r.objects.putSecret("login", false, "password", hidden)
	v := r.volume(secret("login"))
	v.mustSetUp()
	counted.lists = 0
	for _, password := range []string{"other", "another"} {
		r.objects.putSecret("login", false, "password", password)
		v.mustSetUp()
		v.has("password", password)
	}
	if counted.lists > 0 {
		t.Errorf("the mount table was read %d times", counted.lists)
	}
}
