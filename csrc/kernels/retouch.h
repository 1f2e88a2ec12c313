// Changes a picture's bytes in place, after it is cropped and before it becomes the floats that a net reads. Decoding
// threads call it without the GIL; a thread allocates only for its first pictures.
#pragma once

#include <cstdint>

namespace engine {

// One change, and its numbers a, b, c, ... p: a byte of a pixel, v: the largest of a pixel's three.
struct Change {
    enum Kind : int {
        linear,          // a p + b
        steps,           // the middle of p's step of `a` values
        bits,            // the `a` highest bits of p
        solarize,        // 255 - p, where p is at least `a`
        contrast,        // m + a (p - m); m: the whole picture's mean brightness
        colour,          // m + a (p - m); m: the pixel's brightness
        sharpness,       // m + a (p - m); m: the mean of its neighbourhood, in which it counts five times
        autocontrast,    // the range of each channel is stretched to 0 to 255
        equalize,        // a channel's values become equally frequent, as Pillow does it
        equalize_light,  // the brightness is equalized, as OpenCV does it, and the difference added to all three
        saturation,      // v - a (v - p), until one of the three is 0
        hue,             // the hue is turned by `a` degrees
        order,           // channels a, b, c, in this order
        blur,            // a Gaussian of 7 x 7 pixels, of deviation 1.5
        erode,           // the least of a pixel and its four neighbours
        affine,          // the pixel at (a x + b y + c, d x + e y + f), or black
        dots,            // a share `a` of all pixels, drawn with seed b, becomes c, d, e or, if c < 0, 0 or 255
        hsv,             // hue in steps of two degrees, saturation, value
        kinds,
    } kind;
    double values[6];
};

// Makes `count` changes, one after the other. pixels: (height, width, channels), dense; 1 channel, or blue, green and
// red. Changes of the relation of the three leave one channel as it is.
void retouch(uint8_t* pixels, int height, int width, int channels, const Change* changes, int count);

// What a sample takes from its partner: a share of the pixels in a rectangle.
struct Portion {
    float share;
    int top, left, height, width;
};

// Makes two samples (channels, height, width) take portions of each other, as they were before.
void mix(float* first, float* second, int channels, int height, int width, const Portion& of_first,
         const Portion& of_second);

}  // namespace engine
