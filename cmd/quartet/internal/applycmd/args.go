package applycmd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// dryRun is the flag --dry-run, which kubectl's users give a value.
type dryRun bool

// String implements pflag.Value.
func (d *dryRun) String() string { return strconv.FormatBool(bool(*d)) }

// Type implements pflag.Value.
func (d *dryRun) Type() string { return "bool" }

// Set implements pflag.Value.
func (d *dryRun) Set(text string) error {
	switch text {
	case "server", "true":
		*d = true
	case "none", "false":
		*d = false
	default:
		return errors.New("use --dry-run without a value: only configmux validates")
	}
	return nil
}

// kind is the kind of a named object, in the words of the command line.
type kind string

// The kinds that can be applied.
const (
	podKind       kind = "pod"
	configMapKind kind = "configmap"
	secretKind    kind = "secret"
	claimKind     kind = "persistentvolumeclaim"
	classKind     kind = "storageclass"
	driverKind    kind = "csidriver"
)

// volumeKind can only be deleted.
const volumeKind kind = "persistentvolume"

// deletableKindOf returns the kind of a word on the command line of delete.
func deletableKindOf(word string) (k kind, ok bool) {
	switch strings.ToLower(word) {
	case "persistentvolume", "persistentvolumes", "pv":
		return volumeKind, true
	}
	return kindOf(word)
}

// kindOf returns the kind of a word on the command line.
func kindOf(word string) (k kind, ok bool) {
	switch strings.ToLower(word) {
	case "pod", "pods", "po":
		return podKind, true
	case "configmap", "configmaps", "cm":
		return configMapKind, true
	case "secret", "secrets":
		return secretKind, true
	case "persistentvolumeclaim", "persistentvolumeclaims", "pvc":
		return claimKind, true
	case "storageclass", "storageclasses", "sc":
		return classKind, true
	case "csidriver", "csidrivers":
		return driverKind, true
	default:
		return "", false
	}
}

// inManifest returns the kind in the form of manifests and configmux.
func (k kind) inManifest() string {
	switch k {
	case configMapKind:
		return "ConfigMap"
	case secretKind:
		return "Secret"
	case claimKind:
		return "PersistentVolumeClaim"
	case classKind:
		return "StorageClass"
	case driverKind:
		return "CSIDriver"
	case volumeKind:
		return "PersistentVolume"
	case podKind:
		return "Pod"
	default:
		return string(k)
	}
}

// apiVersion returns the version of the API that has the kind.
func (k kind) apiVersion() string {
	if k.isOfNode() {
		return storagev1.SchemeGroupVersion.String()
	}
	return v1.SchemeGroupVersion.String()
}

// isOfNode reports whether objects of the kind have no namespace.
func (k kind) isOfNode() bool { return k == classKind || k == driverKind || k == volumeKind }

// objectName names a pod or another object. An empty namespace means "default", for a kind with namespaces.
type objectName struct {
	kind            kind
	namespace, name string
}

// String returns the readable name.
func (n objectName) String() string {
	if n.namespace == "" || n.namespace == v1.NamespaceDefault {
		return string(n.kind) + "/" + n.name
	}
	return string(n.kind) + "/" + n.namespace + "/" + n.name
}

// namesOf returns the names in the arguments of delete: a kind and names, or names in the form "KIND/NAME", as apply
// prints them.
func namesOf(args []string, namespace string, paths []string) ([]objectName, error) {
	switch {
	case len(paths) > 0 && (len(args) > 0 || namespace != ""):
		return nil, errors.New("give names, or the manifests with -f, and not both")
	case len(paths) > 0:
		return nil, nil
	case len(args) == 0:
		return nil, errors.New("say what to delete: pod NAME, configmap NAME, secret NAME, pvc NAME, pv NAME, storageclass NAME, csidriver NAME, or -f FILE")
	}
	if k, ok := deletableKindOf(args[0]); ok {
		if len(args) == 1 {
			return nil, fmt.Errorf("name what to delete: delete %s NAME", k)
		}
		return qualified(k, args[1:], namespace)
	}
	var names []objectName
	for _, arg := range args {
		word, name, _ := strings.Cut(arg, "/")
		k, ok := deletableKindOf(word)
		if !ok || name == "" {
			return nil, fmt.Errorf(
				"there is no %q to delete: say delete KIND NAME, with the kind pod, configmap, secret, pvc, pv, storageclass or csidriver",
				arg,
			)
		}
		named, err := qualified(k, []string{name}, namespace)
		if err != nil {
			return nil, err
		}
		names = append(names, named...)
	}
	return names, nil
}

// qualified returns the names in the form NAME, within a namespace, or NAMESPACE/NAME.
func qualified(k kind, args []string, namespace string) ([]objectName, error) {
	names := make([]objectName, 0, len(args))
	for _, arg := range args {
		n := objectName{k, namespace, arg}
		if k.isOfNode() {
			n.namespace = ""
		}
		if before, name, ok := strings.Cut(arg, "/"); ok {
			if namespace != "" && before != namespace {
				return nil, fmt.Errorf(
					"%q is not in the namespace %q: leave out -n, or the namespace before the slash",
					arg,
					namespace,
				)
			}
			n = objectName{k, before, name}
		}
		names = append(names, n)
	}
	return names, nil
}
