package volumecontent_test

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumecontent"
)

// hidden is in every secret and token of these tests. It must not be in an error.
const hidden = "hunter2"

func ptr[T any](v T) *T { return &v }

func item(key, path string, mode ...int32) v1.KeyToPath {
	k := v1.KeyToPath{Key: key, Path: path}
	if len(mode) > 0 {
		k.Mode = &mode[0]
	}
	return k
}

// world returns the inputs for a pod in a namespace with objects.
func world() volumecontent.Inputs {
	configMaps := map[string]*v1.ConfigMap{
		"settings": {Data: map[string]string{"a": "1", "b.conf": "2"}, BinaryData: map[string][]byte{"bin": {0, 255}}},
		"twice":    {Data: map[string]string{"k": "text"}, BinaryData: map[string][]byte{"k": []byte("bytes")}},
		"empty":    {},
		"bad":      {Data: map[string]string{"..data": "x"}},
	}
	secrets := map[string]*v1.Secret{"login": {Data: map[string][]byte{"user": []byte("me"), "password": []byte(hidden)}}}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: "u-1", Labels: map[string]string{"tier": "front", "app": "web"},
			Annotations: map[string]string{"note": "a \"quote\"\nand a line"},
		},
		Spec: v1.PodSpec{Containers: []v1.Container{
			{Name: "app", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}, Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m")}}},
		}},
	}
	return volumecontent.Inputs{
		Pod: pod,
		ConfigMap: func(name string) (*v1.ConfigMap, error) {
			if m := configMaps[name]; m != nil {
				return m, nil
			}
			if name == "slow" {
				return nil, errors.New("no answer")
			}
			return nil, apierrors.NewNotFound(v1.Resource("configmaps"), name)
		},
		Secret: func(name string) (*v1.Secret, error) {
			if s := secrets[name]; s != nil {
				return s, nil
			}
			return nil, apierrors.NewNotFound(v1.Resource("secrets"), name)
		},
		Token: func(audience string, seconds int64) (string, error) {
			if audience == "refused" {
				return "", errors.New("not for you")
			}
			return fmt.Sprintf("%s for %q, %d s", hidden, audience, seconds), nil
		},
		TrustBundle: func(p *v1.ClusterTrustBundleProjection) ([]byte, error) {
			if *p.Name == "none" {
				return nil, apierrors.NewNotFound(v1.Resource("clustertrustbundles"), *p.Name)
			}
			return []byte("the roots of " + *p.Name), nil
		},
		Certificate: func(source int, p *v1.PodCertificateProjection) (key, chain []byte, err error) {
			if p.SignerName == "slow" {
				return nil, nil, errors.New("not issued yet")
			}
			return []byte(hidden + "\n"), fmt.Appendf(nil, "the chain of %d", source), nil
		},
		Allocatable: func() (v1.ResourceList, error) {
			return v1.ResourceList{
				v1.ResourceCPU: resource.MustParse("3500m"), v1.ResourceMemory: resource.MustParse("8Gi"),
			}, nil
		},
	}
}

func field(path, of string) v1.DownwardAPIVolumeFile {
	return v1.DownwardAPIVolumeFile{Path: path, FieldRef: &v1.ObjectFieldSelector{FieldPath: of}}
}

func resourceField(path, container, of, divisor string) v1.DownwardAPIVolumeFile {
	ref := &v1.ResourceFieldSelector{ContainerName: container, Resource: of}
	if divisor != "" {
		ref.Divisor = resource.MustParse(divisor)
	}
	return v1.DownwardAPIVolumeFile{Path: path, ResourceFieldRef: ref}
}

func configMap(name string, optional bool, mode *int32, items ...v1.KeyToPath) v1.VolumeSource {
	return v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: name}, Optional: &optional, DefaultMode: mode, Items: items,
	}}
}

func secret(name string, optional bool, items ...v1.KeyToPath) v1.VolumeSource {
	return v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name, Optional: &optional, Items: items}}
}

func downward(items ...v1.DownwardAPIVolumeFile) v1.VolumeSource {
	return v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: items}}
}

func projected(sources ...v1.VolumeProjection) v1.VolumeSource {
	return v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: sources, DefaultMode: ptr[int32](0o440)}}
}

func projectedConfigMap(name string, items ...v1.KeyToPath) v1.VolumeProjection {
	return v1.VolumeProjection{
		ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: name}, Items: items},
	}
}

func projectedSecret(name string, items ...v1.KeyToPath) v1.VolumeProjection {
	return v1.VolumeProjection{
		Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: name}, Items: items},
	}
}

func trustBundle(name, path string, optional *bool) v1.VolumeProjection {
	return v1.VolumeProjection{
		ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: &name, Path: path, Optional: optional},
	}
}

func token(path, audience string, seconds *int64) v1.VolumeProjection {
	return v1.VolumeProjection{
		ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: path, Audience: audience, ExpirationSeconds: seconds},
	}
}

// contents returns the mode and content of files by path.
func contents(files volumecontent.Files) map[string]string {
	all := map[string]string{}
	for p, f := range files {
		all[p] = fmt.Sprintf("%04o %s", f.Mode, f.Data)
	}
	return all
}

func TestFilesOfVolumes(t *testing.T) {
	for name, test := range map[string]struct {
		source v1.VolumeSource
		want   map[string]string
	}{
		"all keys of a config map": {configMap("settings", false, nil), map[string]string{"a": "0644 1", "b.conf": "0644 2", "bin": "0644 \x00\xff"}},
		"an empty config map":      {configMap("empty", false, nil), map[string]string{}},
		"a default mode":           {configMap("settings", false, ptr[int32](0o400), item("a", "a")), map[string]string{"a": "0400 1"}},
		"a path with .. in it":     {configMap("settings", false, nil, item("a", "etc//x/../a", 0o600), item("bin", "./bin")), nil},
		"items": {configMap("settings", false, nil, item("a", "etc//x/./a", 0o600), item("bin", "./bin"), item("a", "again")), map[string]string{
			"etc/x/a": "0600 1", "bin": "0644 \x00\xff", "again": "0644 1",
		}},
		"an optional config map that is not there": {configMap("none", true, nil), map[string]string{}},
		"an optional key that is not there":        {configMap("settings", true, nil, item("none", "none"), item("a", "a")), map[string]string{"a": "0644 1"}},
		"bytes before text without items":          {configMap("twice", false, nil), map[string]string{"k": "0644 bytes"}},
		"text before bytes with items":             {configMap("twice", false, nil, item("k", "k")), map[string]string{"k": "0644 text"}},
		"a secret":                                 {secret("login", false), map[string]string{"user": "0644 me", "password": "0644 " + hidden}},
		"an optional secret that is not there":     {secret("none", true), map[string]string{}},
		"an optional key of a secret":              {secret("login", true, item("none", "none"), item("user", "u")), map[string]string{"u": "0644 me"}},
		"metadata": {downward(field("labels", "metadata.labels"), field("app", "metadata.labels['app']"), field("none", "metadata.labels['none']"),
			field("notes", "metadata.annotations"), field("pod/name", "metadata.name"), field("pod/uid", "metadata.uid"), field("pod/namespace", "metadata.namespace")), map[string]string{
			"labels": "0644 app=\"web\"\ntier=\"front\"", "app": "0644 web", "none": "0644 ", "notes": `0644 note="a \"quote\"\nand a line"`,
			"pod/name": "0644 web", "pod/uid": "0644 u-1", "pod/namespace": "0644 shop",
		}},
		"resources": {downward(resourceField("memory", "app", "limits.memory", "1Mi"), resourceField("cpu", "app", "requests.cpu", "1m"), resourceField("node", "app", "limits.cpu", "1m"),
			resourceField("whole", "app", "limits.cpu", "")), map[string]string{
			"memory": "0644 1024", "cpu": "0644 250", "node": "0644 3500", "whole": "0644 4",
		}},
		"all sources, of which a later one wins": {projected(
			projectedConfigMap("settings", item("a", "same"), item("b.conf", "conf/b")), projectedSecret("login", item("user", "same", 0o400)), token("token", "", nil), token("vault", "vault", ptr[int64](600)),
			v1.VolumeProjection{
				DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{field("name", "metadata.name")}},
			},
		), map[string]string{
			"same": "0400 me", "conf/b": "0440 2", "name": "0440 web", "token": "0440 " + hidden + ` for "", 3600 s`, "vault": "0440 " + hidden + ` for "vault", 600 s`,
		}},
		"roots, and none that need not be": {projected(trustBundle("roots", "tls/ca.crt", nil), trustBundle("none", "other.crt", ptr(true))), map[string]string{
			"tls/ca.crt": "0440 the roots of roots", "other.crt": "0440 ",
		}},
		"a certificate in all of its forms, of the second source": {projected(projectedSecret("login", item("user", "u")), v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{
			SignerName: "shop/signer", CredentialBundlePath: "tls/./bundle", KeyPath: "tls/key", CertificateChainPath: "tls/chain",
		}}), map[string]string{
			"u": "0440 me", "tls/bundle": "0440 " + hidden + "\nthe chain of 1", "tls/key": "0440 " + hidden + "\n", "tls/chain": "0440 the chain of 1",
		}},
		"nothing projected": {projected(), map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := volumecontent.Of(&v1.Volume{Name: "v", VolumeSource: test.source}, world())
			if test.want == nil {
				if err == nil {
					t.Fatalf("got %v, want an error", files)
				}
				return
			}
			if diff := cmp.Diff(test.want, contents(files)); err != nil || diff != "" {
				t.Errorf("error %v, files (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestProblemsOfAVolume(t *testing.T) {
	long := strings.Repeat("x", 256)
	for name, test := range map[string]struct {
		source v1.VolumeSource
		want   string
	}{
		"no config map":         {configMap("none", false, nil), `configmaps "none" not found`},
		"one that nobody gives": {configMap("slow", true, nil), `config map shop/slow: no answer`},
		"no key":                {configMap("settings", false, nil, item("none", "x")), `config map shop/settings: it has no key "none"; add it, or mark the source optional`},
		"no secret":             {secret("none", false), `secrets "none" not found`},
		"no key of a secret":    {secret("login", false, item("none", "x")), `secret shop/login: it has no key "none"; add it, or mark the source optional`},
		"a path that leads out": {secret("login", false, item("password", "a/../../b")), `secret shop/login: key "password": path "a/../../b" has a ".." in it`},
		"an absolute path":      {secret("login", false, item("password", "/etc/x")), `secret shop/login: key "password": path "/etc/x" is absolute; it has to be relative to the volume`},
		"a reserved path":       {secret("login", false, item("password", "./..data")), `secret shop/login: key "password": path "./..data" begins with ".."`},
		"a reserved key":        {configMap("bad", false, nil), `config map shop/bad: key "..data": path "..data" begins with ".."`},
		"the volume":            {secret("login", false, item("password", "./")), `secret shop/login: key "password": path "./" is that of the volume itself`},
		"no path":               {secret("login", false, item("password", "")), `secret shop/login: key "password": path is empty`},
		"a long name":           {secret("login", false, item("password", long)), `secret shop/login: key "password": path "` + long + `" has a name that is longer than 255 bytes`},
		"a NUL":                 {secret("login", false, item("password", "a\x00")), `secret shop/login: key "password": path "a\x00" has a NUL in it`},
		"a file that is a folder": {projected(projectedConfigMap("settings", item("a", "x/y/z")), projectedSecret("login", item("user", "x"))),
			`path "x" is that of a file, and path "x/y/z" is below it; give one of them another path`},
		"a field of the spec":  {downward(field("x", "spec.nodeName")), `downwardAPI: items[0] "x": fieldRef: unsupported fieldPath: spec.nodeName`},
		"another container":    {downward(resourceField("x", "none", "limits.cpu", "")), `downwardAPI: items[0] "x": resourceFieldRef.containerName: the pod has no container "none"`},
		"another path":         {downward(field("../x", "metadata.name")), `downwardAPI: items[0] "../x": path "../x" begins with ".."`},
		"no trust bundle":      {projected(trustBundle("none", "ca.crt", nil)), `projected.sources[0].clusterTrustBundle: clustertrustbundles "none" not found`},
		"its path":             {projected(trustBundle("roots", "/ca.crt", nil)), `projected.sources[0].clusterTrustBundle: path "/ca.crt" is absolute; it has to be relative to the volume`},
		"no certificate yet":   {projected(v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{SignerName: "slow"}}), `projected.sources[0].podCertificate: not issued yet`},
		"a certificate's path": {projected(v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{KeyPath: "../key"}}), `projected.sources[0].podCertificate: path "../key" begins with ".."`},
		"an unknown source":    {projected(v1.VolumeProjection{}), `projected.sources[0].?: the source names nothing, or something that this version of Quartet does not know`},
		"a token's path":       {projected(token("../token", "", nil)), `projected.sources[0].serviceAccountToken: path "../token" begins with ".."`},
		"a token that is none": {projected(token("token", "refused", nil)), `projected.sources[0].serviceAccountToken: service account shop/default: not for you`},
		"several sources": {projected(projectedSecret("login"), projectedSecret("none"), projectedConfigMap("settings", item("none", "x"))),
			`[projected.sources[1].secret: secrets "none" not found, projected.sources[2].configMap: config map shop/settings: it has no key "none"; add it, or mark the source optional]`},
		"another kind": {v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, "the volume is none of configMap, secret, downwardAPI and projected"},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := volumecontent.Of(&v1.Volume{Name: "v", VolumeSource: test.source}, world())
			if err == nil || err.Error() != test.want {
				t.Fatalf("files %v, error %v\nwant %s", files, err, test.want)
			}
			if strings.Contains(err.Error(), hidden) {
				t.Errorf("the error has what is in a secret: %v", err)
			}
		})
	}
	_, err := volumecontent.Of(&v1.Volume{VolumeSource: configMap("none", false, nil)}, world())
	if !apierrors.IsNotFound(err) {
		t.Errorf("%v is not known to be of an object that is not there", err)
	}
	in := world()
	in.Allocatable = func() (v1.ResourceList, error) { return nil, errors.New("no answer") }
	_, err = volumecontent.Of(&v1.Volume{VolumeSource: downward(resourceField("x", "app", "limits.cpu", ""))}, in)
	if want := `downwardAPI: items[0] "x": resourceFieldRef: the allocatable resources of the node are not known: no answer`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestAFileIsPrintedWithoutWhatIsInIt checks that the printed form of a file has only its size, so that no secret is
// printed.
func TestAFileIsPrintedWithoutWhatIsInIt(t *testing.T) {
	files := volumecontent.Files{"x": {Data: []byte(hidden), Mode: 0o400}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(verb, files); strings.Contains(text, hidden) ||
			strings.Contains(text, fmt.Sprint([]byte(hidden)[:2])[1:]) {
			t.Errorf("%s: %s", verb, text)
		}
	}
}

func TestIdentityFilesAreReadableByThePodAlone(t *testing.T) {
	run := func(user int64) *v1.SecurityContext { return &v1.SecurityContext{RunAsUser: &user} }
	for name, test := range map[string]struct {
		pod        *v1.PodSecurityContext
		containers []*v1.SecurityContext
		ephemeral  *v1.SecurityContext
		mode       fs.FileMode
		uid        *int64
	}{
		"no user":                 {nil, []*v1.SecurityContext{nil}, nil, 0o440, nil},
		"the pod's":               {&v1.PodSecurityContext{RunAsUser: ptr[int64](7)}, []*v1.SecurityContext{nil, nil}, nil, 0o600, ptr[int64](7)},
		"that of all containers":  {nil, []*v1.SecurityContext{run(8), run(8)}, nil, 0o600, ptr[int64](8)},
		"one container without":   {nil, []*v1.SecurityContext{run(8), nil}, nil, 0o440, nil},
		"two users":               {&v1.PodSecurityContext{RunAsUser: ptr[int64](7)}, []*v1.SecurityContext{run(8), nil}, nil, 0o440, nil},
		"an ephemeral one's":      {nil, []*v1.SecurityContext{run(8)}, run(9), 0o440, nil},
		"a group":                 {&v1.PodSecurityContext{FSGroup: ptr[int64](5)}, []*v1.SecurityContext{nil}, nil, 0o600, nil},
		"root of all containers":  {nil, []*v1.SecurityContext{run(0)}, nil, 0o600, ptr[int64](0)},
		"a container's and group": {&v1.PodSecurityContext{FSGroup: ptr[int64](5), RunAsUser: ptr[int64](7)}, []*v1.SecurityContext{run(8)}, nil, 0o600, ptr[int64](8)},
	} {
		t.Run(name, func(t *testing.T) {
			in := world()
			in.Pod.Spec = v1.PodSpec{SecurityContext: test.pod}
			for _, sc := range test.containers {
				in.Pod.Spec.Containers = append(in.Pod.Spec.Containers, v1.Container{SecurityContext: sc})
			}
			if test.ephemeral != nil {
				in.Pod.Spec.EphemeralContainers = []v1.EphemeralContainer{
					{EphemeralContainerCommon: v1.EphemeralContainerCommon{SecurityContext: test.ephemeral}},
				}
			}
			files, err := volumecontent.Of(&v1.Volume{VolumeSource: projected(token("token", "", nil), projectedSecret("login", item("user", "u")),
				trustBundle("roots", "ca", nil), v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{KeyPath: "key"}})}, in)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"token", "ca", "key"} {
				if got := files[name]; got.Mode != test.mode || !cmp.Equal(got.UID, test.uid) {
					t.Errorf("%s: mode %04o of %v, want %04o of %v", name, got.Mode, got.UID, test.mode, test.uid)
				}
			}
			if got := files["u"]; got.Mode != 0o440 || got.UID != nil {
				t.Errorf("a secret beside it: mode %04o of %v", got.Mode, got.UID)
			}
		})
	}
}

func TestMountPointsBelowAVolume(t *testing.T) {
	mounts := func(pairs ...string) v1.Container {
		var c v1.Container
		for i := 0; i < len(pairs); i += 2 {
			c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: pairs[i], MountPath: pairs[i+1]})
		}
		return c
	}
	pod := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{mounts("v", "/v", "x", "/v/init/")},
		Containers: []v1.Container{
			mounts("v", "/etc/app", "x", "/etc/app/nested", "y", "/etc/app/nested/deep", "z", "/etc/app/nested-too/a", "w", "/etc/application", "v2", "/etc"),
			mounts("other", "/v", "x", "/v/none"),
		},
	}}
	if diff := cmp.Diff([]string{"init", "nested", "nested-too/a"}, volumecontent.MountPoints(pod, "v")); diff != "" {
		t.Errorf("MountPoints() differs (-want +got):\n%s", diff)
	}
	if got := volumecontent.MountPoints(pod, "none"); len(got) > 0 {
		t.Errorf("of a volume that nobody mounts: %v, want none", got)
	}
}

// TestPathsStayInTheVolume checks any paths: accepted ones stay in the volume and can be written, and rejected ones are
// reported.
func TestPathsStayInTheVolume(t *testing.T) {
	name := rapid.SampledFrom([]string{"a", "b", ".", "..", "", "..data", ".hidden", "...", "a b", "\x00", "é"})
	rapid.Check(t, func(t *rapid.T) {
		var items []v1.KeyToPath
		for range rapid.IntRange(1, 4).Draw(t, "items") {
			items = append(items, item("a", strings.Join(rapid.SliceOfN(name, 1, 5).Draw(t, "names"), "/")))
		}
		files, err := volumecontent.Of(&v1.Volume{VolumeSource: configMap("settings", false, nil, items...)}, world())
		if err != nil {
			return
		}
		for p := range files {
			if !filepath.IsLocal(p) || filepath.Clean(p) != p || strings.HasPrefix(p, "..") || p == "." {
				t.Errorf("%q was taken", p)
			}
		}
		if err := files.Check(); err != nil {
			t.Errorf("what was taken is wrong: %v", err)
		}
	})
}

func TestCheckRefusesWhatIsNotClean(t *testing.T) {
	for _, p := range []string{"a//b", "a/", "./a", "../a", "/a", ""} {
		if err := (volumecontent.Files{p: {}}).Check(); err == nil {
			t.Errorf("%q was taken", p)
		}
	}
}
