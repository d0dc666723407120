package applycmd

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// dryRun is the flag --dry-run, which whoever is used to kubectl gives a value.
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
		return errors.New("say --dry-run: it is configmux that validates, and nobody else")
	}
	return nil
}

// podName names a pod; without a namespace that is "default".
type podName struct{ namespace, name string }

// String is how people name the pod.
func (n podName) String() string {
	if n.namespace == "" || n.namespace == v1.NamespaceDefault {
		return "pod/" + n.name
	}
	return "pod/" + n.namespace + "/" + n.name
}

// kinds are the words for a pod.
func kinds() []string { return []string{"pod", "pods", "po"} }

// namesOf returns the pods that the arguments of delete name: "pod" and names, or names that begin with "pod/", as apply
// prints them.
func namesOf(args []string, namespace string, paths []string) ([]podName, error) {
	switch {
	case len(paths) > 0 && (len(args) > 0 || namespace != ""):
		return nil, errors.New("name the pods, or the manifests with -f, and not both")
	case len(paths) > 0:
		return nil, nil
	case len(args) == 0:
		return nil, errors.New("say what to delete: pod NAME, or -f FILE")
	case len(args) == 1 && slices.Contains(kinds(), args[0]):
		return nil, errors.New("name the pods to delete: delete pod NAME")
	case slices.Contains(kinds(), args[0]):
		return qualified(args[1:], namespace)
	}
	names := make([]string, 0, len(args))
	for _, arg := range args {
		kind, name, _ := strings.Cut(arg, "/")
		if !slices.Contains(kinds(), kind) || name == "" {
			return nil, fmt.Errorf("there is no %q to delete: say delete pod NAME", arg)
		}
		names = append(names, name)
	}
	return qualified(names, namespace)
}

// qualified returns pods that are named as NAME, in a namespace, or as NAMESPACE/NAME.
func qualified(args []string, namespace string) ([]podName, error) {
	names := make([]podName, 0, len(args))
	for _, arg := range args {
		n := podName{namespace, arg}
		if before, name, is := strings.Cut(arg, "/"); is {
			if namespace != "" && before != namespace {
				return nil, fmt.Errorf("%q is not in the namespace %q: leave out -n, or the namespace before the slash", arg, namespace)
			}
			n = podName{before, name}
		}
		names = append(names, n)
	}
	return names, nil
}
