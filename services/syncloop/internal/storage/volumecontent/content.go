package volumecontent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/kubectl/pkg/util/fieldpath"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// The API's default modes and token lifetime.
const (
	defaultMode              = fs.FileMode(v1.ConfigMapVolumeSourceDefaultMode)
	defaultExpirationSeconds = int64(60 * 60)
)

// identityMode is the mode of a file with the pod's identity whose owner or group is the pod's own.
const identityMode = fs.FileMode(0o600)

// Inputs holds the inputs to the files of a pod's volumes. Each function is called only if the volume needs it.
type Inputs struct {
	// Pod is the pod. It is not changed.
	Pod *v1.Pod
	// ConfigMap and Secret return an object of the pod's namespace, and fail with an error that apierrors.IsNotFound
	// recognizes if there is none.
	ConfigMap func(name string) (*v1.ConfigMap, error)
	Secret    func(name string) (*v1.Secret, error)
	// Token returns a token of the pod's service account for an audience, the API server's if it is empty, with about the
	// given lifetime.
	Token func(audience string, expirationSeconds int64) (string, error)
	// TrustBundle returns the roots that a source selects, and fails with an error that apierrors.IsNotFound recognizes if
	// there are none.
	TrustBundle func(*v1.ClusterTrustBundleProjection) ([]byte, error)
	// Certificate returns the key and the certificate chain, both in PEM, of the source with an index.
	Certificate func(source int, p *v1.PodCertificateProjection) (key, chain []byte, err error)
	// Allocatable returns the node's allocatable resources.
	Allocatable func() (v1.ResourceList, error)
}

// Of returns the files of a volume. An error names the object, the item and the key, and the source of a projected
// volume, but not the volume, which the caller knows; it contains nothing of a secret or token. A projected volume
// reports the errors of all its sources.
//
// As in the kubelet, the user fields of sources and items, which are alpha, have no effect.
func Of(v *v1.Volume, in Inputs) (Files, error) {
	files := Files{}
	var err error
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		err = in.configMap(files, s.Name, s.Items, s.Optional, modeOr(s.DefaultMode, defaultMode))
	case v.Secret != nil:
		s := v.Secret
		err = in.secret(files, s.SecretName, s.Items, s.Optional, modeOr(s.DefaultMode, defaultMode))
	case v.DownwardAPI != nil:
		err = named("downwardAPI", in.downwardAPI(files, v.DownwardAPI.Items, modeOr(v.DownwardAPI.DefaultMode, defaultMode)))
	case v.Projected != nil:
		err = in.projected(files, v.Projected)
	default:
		err = errors.New("the volume is none of configMap, secret, downwardAPI and projected")
	}
	if err == nil {
		err = files.Check()
	}
	if err != nil {
		return nil, err
	}
	return files, nil
}

// projected adds the files of all sources. If two sources have the same path, the later one wins, as in the kubelet.
func (in Inputs) projected(files Files, p *v1.ProjectedVolumeSource) error {
	mode := modeOr(p.DefaultMode, defaultMode)
	var failed []error
	for i := range p.Sources {
		kind, err := in.source(files, i, &p.Sources[i], mode)
		if err != nil {
			failed = append(failed, named(fmt.Sprintf("projected.sources[%d].%s", i, kind), err))
		}
	}
	return utilerrors.NewAggregate(failed)
}

// source adds the files of one source of a projected volume, and returns its kind. place is its index.
func (in Inputs) source(files Files, place int, s *v1.VolumeProjection, mode fs.FileMode) (kind string, err error) {
	switch {
	case s.ConfigMap != nil:
		return "configMap", in.configMap(files, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional, mode)
	case s.Secret != nil:
		return "secret", in.secret(files, s.Secret.Name, s.Secret.Items, s.Secret.Optional, mode)
	case s.DownwardAPI != nil:
		return "downwardAPI", in.downwardAPI(files, s.DownwardAPI.Items, mode)
	case s.ServiceAccountToken != nil:
		return "serviceAccountToken", in.token(files, s.ServiceAccountToken, mode)
	case s.ClusterTrustBundle != nil:
		return "clusterTrustBundle", in.trustBundle(files, s.ClusterTrustBundle, mode)
	case s.PodCertificate != nil:
		return "podCertificate", in.certificate(files, place, s.PodCertificate, mode)
	}
	return "?", errors.New("the source names nothing, or something that this version of Quartet does not know")
}

func (in Inputs) configMap(files Files, name string, items []v1.KeyToPath, optional *bool, mode fs.FileMode) error {
	object, err := in.ConfigMap(name)
	if apierrors.IsNotFound(err) && isTrue(optional) {
		return nil
	}
	subject := fmt.Sprintf("config map %s/%s", in.Pod.Namespace, name)
	if err != nil {
		return notHad(subject, err)
	}
	// Of two with the same key, the kubelet's choice is used, which differs with items.
	all := make(map[string][]byte, len(object.Data)+len(object.BinaryData))
	textFirst := len(items) > 0
	for key, text := range object.Data {
		all[key] = []byte(text)
	}
	for key, data := range object.BinaryData {
		if _, taken := all[key]; !taken || !textFirst {
			all[key] = data
		}
	}
	return named(subject, files.addKeys(all, items, isTrue(optional), mode))
}

// notHad returns why an object is not available. A missing one has the kubelet's message: `secret "login" not found`.
func notHad(subject string, err error) error {
	if apierrors.IsNotFound(err) {
		return err
	}
	return fmt.Errorf("%s: %w", subject, err)
}

func (in Inputs) secret(files Files, name string, items []v1.KeyToPath, optional *bool, mode fs.FileMode) error {
	object, err := in.Secret(name)
	if apierrors.IsNotFound(err) && isTrue(optional) {
		return nil
	}
	subject := fmt.Sprintf("secret %s/%s", in.Pod.Namespace, name)
	if err != nil {
		return notHad(subject, err)
	}
	return named(subject, files.addKeys(object.Data, items, isTrue(optional), mode))
}

// addKeys adds the keys of an object that items name, or all keys without items.
func (f Files) addKeys(all map[string][]byte, items []v1.KeyToPath, optional bool, mode fs.FileMode) error {
	if len(items) == 0 {
		items = make([]v1.KeyToPath, 0, len(all))
		for _, key := range slices.Sorted(maps.Keys(all)) {
			items = append(items, v1.KeyToPath{Key: key, Path: key})
		}
	}
	found := Files{}
	for _, item := range items {
		data, ok := all[item.Key]
		switch {
		case !ok && optional:
			continue
		case !ok:
			return fmt.Errorf("it has no key %q; add it, or mark the source optional", item.Key)
		}
		p, err := cleanPath(item.Path)
		if err != nil {
			return fmt.Errorf("key %q: %w", item.Key, err)
		}
		found[p] = File{Data: data, Mode: modeOr(item.Mode, mode)}
	}
	maps.Copy(f, found)
	return nil
}

func (in Inputs) downwardAPI(files Files, items []v1.DownwardAPIVolumeFile, mode fs.FileMode) error {
	found := Files{}
	for i := range items {
		item := &items[i]
		p, err := cleanPath(item.Path)
		var text string
		if err == nil {
			text, err = in.field(item)
		}
		if err != nil {
			return fmt.Errorf("items[%d] %q: %w", i, item.Path, err)
		}
		found[p] = File{Data: []byte(text), Mode: modeOr(item.Mode, mode)}
	}
	maps.Copy(files, found)
	return nil
}

// field returns the text of an item of the downward API. Unlike an environment variable it can only refer to metadata,
// because the rest of a pod may change without an update of the volume.
func (in Inputs) field(item *v1.DownwardAPIVolumeFile) (string, error) {
	switch {
	case item.FieldRef != nil:
		text, err := fieldpath.ExtractFieldPathAsString(in.Pod, item.FieldRef.FieldPath)
		return text, named("fieldRef", err)
	case item.ResourceFieldRef != nil:
		allocatable, err := in.Allocatable()
		if err != nil {
			return "", fmt.Errorf("resourceFieldRef: the allocatable resources of the node are not known: %w", err)
		}
		return containerspec.ResourceOf(in.Pod, item.ResourceFieldRef, containerspec.Node{Allocatable: allocatable})
	}
	return "", nil
}

func (in Inputs) token(files Files, s *v1.ServiceAccountTokenProjection, mode fs.FileMode) error {
	p, err := cleanPath(s.Path)
	if err != nil {
		return err
	}
	seconds := defaultExpirationSeconds
	if s.ExpirationSeconds != nil {
		seconds = *s.ExpirationSeconds
	}
	token, err := in.Token(s.Audience, seconds)
	if err != nil {
		return fmt.Errorf("service account %s/%s: %w", in.Pod.Namespace, cmp.Or(in.Pod.Spec.ServiceAccountName, "default"),
			err)
	}
	in.addIdentity(files, p, []byte(token), mode)
	return nil
}

// addIdentity adds a file with the pod's identity or its trust anchors, owned by the pod's user or group if there is
// one.
func (in Inputs) addIdentity(files Files, path string, data []byte, mode fs.FileMode) {
	owner := onlyUser(in.Pod)
	if sc := in.Pod.Spec.SecurityContext; owner != nil || (sc != nil && sc.FSGroup != nil) {
		mode = identityMode
	}
	files[path] = File{Data: data, Mode: mode, UID: owner}
}

// trustBundle adds the file of a source with roots; an empty one if there are none and the source is optional.
func (in Inputs) trustBundle(files Files, s *v1.ClusterTrustBundleProjection, mode fs.FileMode) error {
	p, err := cleanPath(s.Path)
	if err != nil {
		return err
	}
	roots, err := in.TrustBundle(s)
	if err != nil && (!apierrors.IsNotFound(err) || !isTrue(s.Optional)) {
		return err
	}
	in.addIdentity(files, p, roots, mode)
	return nil
}

// certificate adds the files of a source with a key and its certificate.
func (in Inputs) certificate(files Files, place int, s *v1.PodCertificateProjection, mode fs.FileMode) error {
	paths := []string{s.CredentialBundlePath, s.KeyPath, s.CertificateChainPath}
	for i, p := range paths {
		if p == "" {
			continue
		}
		var err error
		if paths[i], err = cleanPath(p); err != nil {
			return err
		}
	}
	key, chain, err := in.Certificate(place, s)
	if err != nil {
		return err
	}
	for i, data := range [][]byte{slices.Concat(key, chain), key, chain} {
		if paths[i] != "" {
			in.addIdentity(files, paths[i], data, mode)
		}
	}
	return nil
}

// named prefixes an error with its object; nil stays nil.
func named(subject string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	return nil
}

func modeOr(mode *int32, fallback fs.FileMode) fs.FileMode {
	if mode == nil {
		return fallback
	}
	return fs.FileMode(*mode) & fs.ModePerm //nolint:gosec // a mode has nine bits, and the API takes no other
}

func isTrue(b *bool) bool { return b != nil && *b }
