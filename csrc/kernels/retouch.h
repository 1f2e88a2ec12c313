// Changes of a picture's bytes in place, between its crop and the floats that a net reads. Called by decoding threads,
// without the GIL; a thread allocates for its first pictures only.
#pragma once

#include <cstdint>

namespace engine {

// One change, and its numbers. p: a byte of a pixel, v: the largest of a pixel's three.
struct Change {
    enum Kind : int {
        linear,          // a p + b
        steps,           // the middle of its step of `a` values
        bits,            // the `a` highest bits of p
        solarize,        // 255 - p, where p is at least `a`
        contrast,        // m + a (p - m); m: the whole picture's mean brightness
        colour,          // m + a (p - m); m: the pixel's brightness
        sharpness,       // m + a (p - m); m: the mean of its neighbourhood, in which it counts five times
        autocontrast,    // from the least to the largest of each channel becomes 0 to 255
        equalize,        // a channel's values become equally frequent, as Pillow does it
        equalize_light,  // the same of the brightness, as OpenCV does it, which is then added to all three
        saturation,      // v - a (v - p), until one of the three is 0
        hue,             // turned by `a` degrees
        order,           // channels a, b, c
        blur,            // a Gaussian of 7 x 7 pixels, of deviation 1.5
        erode,           // the least of a pixel and its four neighbours
        affine,          // the pixel at (a x + b y + c, d x + e y + f), or black
        dots,            // of a share `a` of all pixels, drawn by the number b: c, d, e, or, where c < 0, 0 or 255
        hsv,             // hue in steps of two degrees, saturation, value
        kinds,
    } kind;
    double values[6];
};

// pixels: (height, width, channels), dense; 1 channel, or blue, green and red. Of one channel nothing changes that
// changes the relation of the three.
void retouch(uint8_t* pixels, int height, int width, int channels, const Change* changes, int count);

// What a sample takes from its partner: so much of those pixels.
struct Portion {
    float share;
    int top, left, height, width;
};

// Two samples (channels, height, width) take portions of each other, as both were before.
void mix(float* first, float* second, int channels, int height, int width, const Portion& of_first,
         const Portion& of_second);

}  // namespace engine
