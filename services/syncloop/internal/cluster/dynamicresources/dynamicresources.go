// Package dynamicresources gets the resource claims of pods from the API server, and removes the devices that drivers
// of this node have published there as ResourceSlices.
//
// The API server lets a node get a claim by its name while a pod of the node names it, and neither list nor watch
// claims. It lets a node list and delete the ResourceSlices of its own.
package dynamicresources

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

const (
	// requestTimeout bounds each request.
	requestTimeout = 15 * time.Second
	// pageSize is the number of ResourceSlices in an answer.
	pageSize = 500
	// claims and resourceSlices are the resources of the API.
	claims, resourceSlices = "resourceclaims", "resourceslices"
)

// APIServer has the claims and the ResourceSlices of an API server.
type APIServer struct {
	// Client is a client of resource/v1 with the rights of the node. Its requests carry also meta/v1 options: see
	// AddTypes.
	Client rest.Interface
	// NodeName is the name of this node.
	NodeName string
	// Node returns this node's Node. Without one there are no ResourceSlices of the node yet.
	Node func(context.Context) (*v1.Node, error)
}

// AddTypes registers the types that requests carry.
func AddTypes(scheme *runtime.Scheme) error {
	metav1.AddToGroupVersion(scheme, resourceapi.SchemeGroupVersion)
	return resourceapi.AddToScheme(scheme)
}

// Claim returns a claim.
func (a APIServer) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	claim := &resourceapi.ResourceClaim{}
	if err := a.Client.Get().Namespace(namespace).Resource(claims).Name(name).Do(ctx).Into(claim); err != nil {
		return nil, err
	}
	return claim, nil
}

// SliceDrivers returns the drivers that have ResourceSlices of this node, sorted.
func (a APIServer) SliceDrivers(ctx context.Context) ([]string, error) {
	if err := a.await(ctx); err != nil {
		return nil, err
	}
	var drivers []string
	options := metav1.ListOptions{FieldSelector: a.selector(""), Limit: pageSize}
	for {
		list := &resourceapi.ResourceSliceList{}
		if err := a.do(ctx, a.Client.Get(), &options).Into(list); err != nil {
			return nil, fmt.Errorf("list the ResourceSlices of this node: %w", err)
		}
		for i := range list.Items {
			drivers = append(drivers, list.Items[i].Spec.Driver)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	slices.Sort(drivers)
	return slices.Compact(drivers), nil
}

// DeleteSlices deletes the ResourceSlices of this node and a driver; those of all drivers if it is empty.
func (a APIServer) DeleteSlices(ctx context.Context, driver string) error {
	if err := a.await(ctx); err != nil {
		return err
	}
	options := metav1.ListOptions{FieldSelector: a.selector(driver)}
	if err := a.do(ctx, a.Client.Delete(), &options).Error(); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the ResourceSlices %s: %w", options.FieldSelector, err)
	}
	return nil
}

// await fails while this node has no Node object.
func (a APIServer) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := a.Node(ctx); err != nil {
		return fmt.Errorf("wait for the Node object: %w", err)
	}
	return nil
}

// do sends a request about the ResourceSlices that options select.
func (a APIServer) do(ctx context.Context, request *rest.Request, options *metav1.ListOptions) rest.Result {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request.Resource(resourceSlices).VersionedParams(options, metav1.ParameterCodec).Do(ctx)
}

// selector selects the ResourceSlices of this node and a driver; those of all drivers if it is empty.
func (a APIServer) selector(driver string) string {
	selected := fields.Set{resourceapi.ResourceSliceSelectorNodeName: a.NodeName}
	if driver != "" {
		selected[resourceapi.ResourceSliceSelectorDriver] = driver
	}
	return selected.String()
}
